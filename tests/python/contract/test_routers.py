"""Routers: what is written to one topic is copied to another."""

from __future__ import annotations

from typing import Any

import pytest

import topics_engine as te

from .adapter import Open, all_of, datas, eventually


async def arrived(topic: Any, expected: list[Any]) -> None:
    async def look() -> bool:
        try:
            return datas(await all_of(topic.read())) == expected
        except te.NotFound:
            return False

    await eventually(look)


async def test_copies_and_goes_on_after_a_restart(open_db: Open) -> None:
    async with open_db() as db:
        await db.topic("a").append("before")
        router = await db.router("r", source="a", dest="b")
        await db.topic("a").append([1, 2], tag="t", origin="n")
        await arrived(db.topic("b"), [1, 2])
        (first, _) = await all_of(db.topic("b").read())
        assert (first.tag, first.origin) == ("t", "n")
        state = await router.state()
        assert (state.router, state.source, state.dest, state.guarantee) == (
            "r",
            "a",
            "b",
            "at_least_once",
        )
    async with open_db() as db:
        await db.topic("a").append(3)
        await arrived(db.topic("b"), [1, 2, 3])


async def test_filters_lists_and_ends(db: Any) -> None:
    await db.topic("a").append(0)
    await db.router("r.some", source="a", dest="b", tag="x:*", preserve_tag=False)
    await db.router("r.all", source="a", dest="c", guarantee="exactly_once")
    await db.topic("a").append([te.NewRecord(1, tag="x:1"), te.NewRecord(2, tag="y")])
    await arrived(db.topic("b"), [1])
    await arrived(db.topic("c"), [1, 2])
    assert [r.tag for r in await db.topic("b").tail(1)] == [None]
    assert [r.router for r in await db.routers("r.")] == ["r.all", "r.some"]
    router = await db.router("r.some")
    assert await router.drop() is True
    assert await router.drop() is False
    with pytest.raises(te.NotFound) as caught:
        await router.state()
    assert caught.value.code == "router_not_found"
    await db.topic("a").drop()
    assert await db.routers() == []


async def test_refusals(db: Any) -> None:
    await db.topic("a").append(0)
    await db.router("ab", source="a", dest="b")
    with pytest.raises(te.Conflict) as caught:
        await db.router("ba", source="b", dest="a")
    assert caught.value.code == "router_cycle"
    with pytest.raises(te.InvalidRequest):
        await db.router("x", source="a")
    with pytest.raises(te.InvalidRequest):
        await db.router("x", source="a", dest="c", guarantee="maybe")
    with pytest.raises(te.NotFound):
        await db.router("x", source="a", dest="none", create_dest=False)
    # A missing source is created as by a write.
    await db.router("from->nothing", source="new", dest="c")
    assert (await db.topic("new").state()).head_seq == 0
