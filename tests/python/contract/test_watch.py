"""Watches: starts, resume, patterns, gaps, ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import topics_engine as te

from .adapter import Open, all_of, datas, eventually, take, until_calls_wait


async def test_from_a_cursor_then_live(db: Any) -> None:
    orders = db.topic("orders")
    await orders.append([1, 2, 3])
    async with db.watch({"orders": 1}, events=True) as watch:
        items = await take(watch, 3)
        assert datas(items) == [2, 3]
        assert items[2] == te.CaughtUp("orders", 3)
        await orders.append({"id": 4}, tag="t", origin="n", meta={"k": "v"})
        record = await anext(watch)
        assert (record.topic, record.seq, record.tag, record.origin) == ("orders", 4, "t", "n")
        assert (record.meta, record.data) == ({"k": "v"}, {"id": 4})
        assert await watch.next(wait=0.01) is None
        assert await watch.next(wait=0) is None


async def test_starts(db: Any) -> None:
    await db.topic("a").append([1, 2])
    async with db.watch("a") as tail, db.watch({"a": te.EARLIEST}) as whole:
        await db.topic("a").append(3)
        assert datas(await take(tail, 1)) == [3]
        assert datas(await take(whole, 3)) == [1, 2, 3]
    with pytest.raises(te.NotFound):
        async with db.watch("none") as watch:
            await watch.next(wait=0)
    async with db.watch("none", lenient=True) as watch:
        await db.topic("none").append("x")
        assert datas(await take(watch, 1)) == ["x"]
    with pytest.raises(te.InvalidRequest):
        async with db.watch([]) as watch:
            await watch.next(wait=0)


async def test_a_cursor_behind_a_recreated_gap_skips_no_record(db: Any) -> None:
    orders = db.topic("orders")
    await orders.append([1, 2, 3, 4, 5])
    await orders.drop()
    await orders.append(["new", "newer"])
    gap = te.Gap("orders", 1, 2, "recreated", 2)
    async with db.watch({"orders": 5}) as watch:
        assert await take(watch, 1) == [gap]
        stored = watch.cursor
    read = orders.read(after=5)
    assert await anext(read) == gap
    assert (stored, read.cursor) == ({"orders": 0}, 0)
    async with db.watch(stored) as watch:
        assert datas(await take(watch, 2)) == ["new", "newer"]
    # The record behind the gap moves the cursor as any other.
    assert (await anext(read)).data == "new"
    assert read.cursor == 1


async def test_a_stored_cursor_resumes_without_a_gap_or_a_repeat(open_db: Open) -> None:
    async with open_db() as db:
        await db.topic("a").append([1, 2, 3, 4])
        async with db.watch({"a": 0}) as watch:
            assert datas(await take(watch, 2)) == [1, 2]
            stored = watch.cursor
        assert stored == watch.cursor == {"a": 2}
    async with open_db() as db:
        await db.topic("a").append(5)
        async with db.watch(stored) as watch:
            assert datas(await take(watch, 3)) == [3, 4, 5]
            assert watch.cursor == {"a": 5}


async def test_patterns(db: Any) -> None:
    await db.topic("a").append(1)
    async with db.watch({"a": 0, "p.*": te.LATEST}) as watch:
        await db.topic("p.new").append([1, 2])
        await db.topic("q").append(1)
        got = {(i.topic, i.seq) for i in await take(watch, 3)}
        assert got == {("a", 1), ("p.new", 1), ("p.new", 2)}


async def test_patterns_have_starts(db: Any) -> None:
    for name in ("p.a", "p.b"):
        await db.topic(name, cap_records=2).append([1, 2])
        await db.topic(name).append(3)
    async with db.watch({"p.*": te.EARLIEST, "p.b": 2}) as watch:
        got = [(i.topic, i.data) for i in await take(watch, 3)]
        assert sorted(got) == [("p.a", 2), ("p.a", 3), ("p.b", 3)]
        await db.topic("p.c").append("new")
        assert datas(await take(watch, 1)) == ["new"]
        assert watch.cursor == {"p.a": 3, "p.b": 3, "p.c": 1}
    async with db.watch({"p.*": 2}) as watch:
        got = [(i.topic, i.data) for i in await take(watch, 2)]
        assert sorted(got) == [("p.a", 3), ("p.b", 3)]


async def test_a_watch_names_a_few_topics(db: Any) -> None:
    with pytest.raises(te.InvalidRequest, match=r"256.*pattern"):
        async with db.watch({f"t{n}": 0 for n in range(257)}, lenient=True) as watch:
            await watch.next(wait=0)


async def test_filters(db: Any) -> None:
    await db.topic("a").append(
        [te.NewRecord(1, tag="x"), te.NewRecord(2, tag="y"), te.NewRecord(3, tag="x", origin="me")]
    )
    async with db.watch({"a": 0}, tag="x", exclude_nodes="me") as watch:
        assert datas(await take(watch, 1)) == [1]
        assert await watch.next(wait=0.01) is None
        assert watch.cursor == {"a": 3}


@pytest.mark.parametrize("gaps", ["yield", "raise", "skip"])
async def test_loss_is_told(db: Any, gaps: str) -> None:
    a = db.topic("a", cap_records=2)
    for i in range(1, 6):
        await a.append(i)
    async with db.watch({"a": 0}, gaps=gaps) as watch:
        if gaps == "raise":
            with pytest.raises(te.DataLoss):
                await anext(watch)
            assert watch.cursor == {"a": 0}
        if gaps == "yield":
            assert await anext(watch) == te.Gap("a", 1, 3, "from_seq_too_old", 3)
        assert datas(await take(watch, 2)) == [4, 5]
        assert [g.last for g in watch.gaps] == [3]


async def test_a_deletion_before_the_first_item_is_told(db: Any) -> None:
    await db.topic("a").append([1, 2])
    async with db.watch({"a": 0}, events=True) as watch:
        await db.topic("a").drop()
        seen: list[Any] = []
        while te.TopicDeleted("a") not in seen:
            seen += await take(watch, 1)
        assert await watch.next(wait=0.01) is None
        await db.topic("a").append("anew")
        (item,) = await take(watch, 1)
        if item == te.CaughtUp("a", 0):
            # The topic was there before its first record.
            (item,) = await take(watch, 1)
        assert item.data == "anew"


async def test_deleted_and_made_anew(db: Any) -> None:
    await db.topic("a").append(1)
    async with db.watch("a", events=True) as watch:
        assert await take(watch, 1) == [te.CaughtUp("a", 1)]
        await db.topic("a").drop()
        assert await take(watch, 1) == [te.TopicDeleted("a")]
        await db.topic("a").append("new")
        (item,) = await take(watch, 1)
        if item == te.CaughtUp("a", 0):
            # The topic was there before its first record.
            (item,) = await take(watch, 1)
        assert datas([item]) == ["new"]


async def test_batches(db: Any) -> None:
    await db.topic("a").append([1, 2, 3])
    async with db.watch({"a": 0}) as watch:
        batches = watch.batches(wait=0.01)
        # Of a server it may take longer than that.
        while not (first := await anext(batches)):
            pass
        assert datas(first) == [1, 2, 3]
        seen = [await anext(batches) for _ in range(3)]
        assert [] in seen
        assert all(not b for b in seen)


async def test_a_batch_is_not_empty_unless_time_is_up(db: Any) -> None:
    await db.topic("a").append(1)
    async with db.watch("a") as watch:
        batches = watch.batches()
        # That it has caught up is told to it, and is no item.
        first = asyncio.ensure_future(anext(batches))
        await until_calls_wait()
        assert not first.done()
        await db.topic("a").append(2)
        assert datas(await first) == [2]
    async with db.watch("a") as watch:
        began = asyncio.get_running_loop().time()
        assert await anext(watch.batches(wait=0.3)) == []
        assert asyncio.get_running_loop().time() - began >= 0.29


async def test_strong_waits_for_the_sync(db: Any) -> None:
    a = db.topic("a", durability="disk")
    await a.append(1)
    async with db.watch("a", strong=True) as watch:
        await a.append(2)
        assert datas(await take(watch, 1)) == [2]


async def test_closing_a_watch_ends_its_iteration(db: Any) -> None:
    await db.topic("a").append(1)
    watch = db.watch("a")
    seen: list[Any] = []

    async def follow() -> None:
        async for item in watch:
            seen.append(item)

    follower = asyncio.create_task(follow())
    while watch.cursor != {"a": 1}:
        await asyncio.sleep(0.001)
    await db.topic("a").append(2)
    # An item that has come and was not taken is not handed out after the close.
    while not seen:
        await asyncio.sleep(0.001)
    await watch.close()
    await watch.close()
    await follower
    assert datas(seen) == [2]
    assert await all_of(watch) == []


async def test_closing_the_database_is_an_error_to_a_watcher(open_db: Open) -> None:
    async with open_db() as db:
        await db.topic("a").append(1)
        follower = asyncio.create_task(all_of(db.watch({"a": 0})))
        await until_calls_wait()
        await db.close()
        with pytest.raises(te.Closed):
            await follower


async def test_a_slow_watcher_misses_nothing(db: Any) -> None:
    a = db.topic("a")
    await a.append(b"0")
    async with db.watch("a") as watch:
        assert await watch.next(wait=0) is None
        for i in range(0, 3000, 100):
            await a.append_batch([str(n).encode() for n in range(i, i + 100)])
        assert [int(d) for d in datas(await take(watch, 3000))] == list(range(3000))

    async def ended() -> bool:
        return bool((await db.metrics())["watch_streams"] == 0)

    # A server learns of it from the connection.
    assert not db.settings or await ended()
    await eventually(ended)
