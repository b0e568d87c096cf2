"""Remote watches of more topics than a session names, over a server that is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.server import Server

from .adapter import datas, take

MANY = 300


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with te.open(tmp_path / "data") as db:
        for n in range(MANY):
            db.topic(f"p.{n:03}").append(n)
    with Server(tmp_path / "data") as live:
        yield live


async def restart(server: Server, meanwhile: Any) -> None:
    """Kills it, changes the directory, starts it again."""
    await asyncio.to_thread(server.kill)

    def change() -> None:
        with te.open(server.data_dir) as db:
            meanwhile(db)
        server.start()

    await asyncio.to_thread(change)


def record(item: Any) -> Any:
    assert isinstance(item, te.Record), item
    return item.topic, item.seq, item.data


async def test_a_pattern_of_many_topics_goes_on_behind_a_restart(
    server: Server, connect: Any
) -> None:
    """I8: every record once, in order; loss, deletion and what was made anew are told."""

    def meanwhile(db: te.Database) -> None:
        db.topic("p.000").append(["b", "c"])
        db.topic("p.299").append("d")
        db.topic("p.new").append(["e", "f"])
        db.topic("p.100").drop()
        db.topic("p.200").drop()
        db.topic("p.200").append(["g", "h"])
        db.topic("p.250").configure(cap_records=1)
        for n in range(3):
            db.topic("p.250").append(f"i{n}")

    async with (
        connect(server.url, heartbeat=1, deadline=600) as db,
        db.watch({"p.*": te.EARLIEST}, events=True) as watch,
    ):
        first = [item for item in await take(watch, 2 * MANY) if isinstance(item, te.Record)]
        assert sorted(map(record, first)) == [(f"p.{n:03}", 1, n) for n in range(MANY)]
        await restart(server, meanwhile)
        seen: list[Any] = []
        while len(datas(seen)) < 8 or te.TopicDeleted("p.100") not in seen:
            seen += await take(watch, 1)
        by_topic: dict[str, list[Any]] = {}
        for item in seen:
            if not isinstance(item, te.CaughtUp):
                by_topic.setdefault(item.topic, []).append(item)
        assert list(map(record, by_topic.pop("p.000"))) == [("p.000", 2, "b"), ("p.000", 3, "c")]
        assert list(map(record, by_topic.pop("p.299"))) == [("p.299", 2, "d")]
        assert list(map(record, by_topic.pop("p.new"))) == [("p.new", 1, "e"), ("p.new", 2, "f")]
        gap, *anew = by_topic.pop("p.200")
        assert gap.reason == "recreated"
        assert list(map(record, anew)) == [("p.200", 1, "g"), ("p.200", 2, "h")]
        gap, kept = by_topic.pop("p.250")
        assert (gap.first, gap.last, record(kept)) == (2, 3, ("p.250", 4, "i2"))
        assert by_topic == {"p.100": [te.TopicDeleted("p.100")]}

        # Once more, where nothing happened: nothing comes twice.
        await restart(server, lambda db: None)
        await db.topic("p.001").append("last")
        rest: list[Any] = []
        while not datas(rest):
            rest += await take(watch, 1)
        assert list(map(record, [i for i in rest if not isinstance(i, te.CaughtUp)])) == [
            ("p.001", 2, "last")
        ]
        assert len(watch.cursor) == MANY
        assert (watch.cursor["p.001"], watch.cursor["p.200"], watch.cursor["p.250"]) == (2, 2, 4)


async def test_a_filter_holds_behind_a_restart(server: Server, connect: Any) -> None:
    def meanwhile(db: te.Database) -> None:
        for n in range(600):
            db.topic("p.007").append(
                n, tag="odd" if n % 2 else "even", origin="me" if n > 9 else "w"
            )

    async with (
        connect(server.url, heartbeat=1, deadline=600) as db,
        db.watch({"p.*": te.LATEST}, tag="odd", exclude_nodes="me", strong=True, limit=3) as watch,
    ):
        assert await watch.next(wait=0.1) is None
        await restart(server, meanwhile)
        assert datas(await take(watch, 5)) == [1, 3, 5, 7, 9]
        assert await watch.next(wait=0.3) is None
        assert watch.cursor["p.007"] == 601


async def test_more_names_than_a_session_has_are_refused(server: Server, connect: Any) -> None:
    async with connect(server.url) as db:
        with pytest.raises(te.InvalidRequest, match=r"256.*pattern"):
            async with db.watch([f"p.{n:03}" for n in range(257)]) as watch:
                await watch.next(wait=0)
        async with db.watch({f"p.{n:03}": 0 for n in range(256)}) as watch:
            assert sorted(datas(await take(watch, 256))) == list(range(256))
