"""Remote clients over a server that is killed and started again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.gate import sized
from support.server import Server

from .adapter import all_of, datas

KILLS = sized(1, 4, 20)
PATIENT = {"deadline": 600, "heartbeat": 1}
"""A server that starts again may take its time."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data") as live:
        yield live


async def kill_and_restart(server: Server, done: Callable[[], float]) -> None:
    """Kills a server in the middle of work, some times; at the end more work is done."""
    for _ in range(KILLS):
        await done_more(done)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await done_more(done)


async def done_more(done: Callable[[], float]) -> None:
    before = done()
    async with asyncio.timeout(120):
        while done() < before + 20:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_appends_are_neither_lost_nor_doubled(
    server: Server, connect: Any, durability: str
) -> None:
    """I1, I5: what was acked is there, once."""
    acked: list[list[int]] = [[], [], []]
    stop = asyncio.Event()

    async with connect(server.url, **PATIENT) as db:
        t = db.topic("t", durability=durability)
        await t.create()

        async def writer(n: int) -> None:
            while not stop.is_set():
                value = len(acked[n])
                await t.append({"w": n, "i": value})
                acked[n].append(value)

        writers = [asyncio.create_task(writer(n)) for n in range(3)]
        await kill_and_restart(server, lambda: min(map(len, acked)))
        stop.set()
        await asyncio.gather(*writers)
        read = datas(await all_of(t.read(after=0, gaps="raise")))
        for n in range(3):
            assert [r["i"] for r in read if r["w"] == n] == acked[n]


async def test_a_watch_goes_on_exactly_behind(server: Server, connect: Any) -> None:
    """I8: every record comes once, in order, over patterns and new topics too."""
    stop = asyncio.Event()
    written: dict[str, int] = {"a": 0, "p.0": 0}
    seen: dict[str, list[Any]] = {}

    async with connect(server.url, **PATIENT) as db:
        await db.topic("a").create()
        async with db.watch({"a": 0, "p.*": te.LATEST}, gaps="raise") as watch:

            async def write() -> None:
                round_ = 0
                while not stop.is_set():
                    round_ += 1
                    for name in ("a", f"p.{round_ // 10}"):
                        await db.topic(name).append(written.get(name, 0))
                        written[name] = written.get(name, 0) + 1
                    await asyncio.sleep(0.002)

            writer = asyncio.create_task(write())
            killer = asyncio.create_task(kill_and_restart(server, lambda: written["a"]))

            def whole() -> bool:
                return stop.is_set() and all(
                    len(seen.get(name, ())) == count for name, count in written.items()
                )

            async with asyncio.timeout(240):
                while not whole():
                    if killer.done() and not stop.is_set():
                        await killer
                        stop.set()
                        await writer
                    item = await watch.next(wait=0.05)
                    if item is not None:
                        seen.setdefault(item.topic, []).append(item.data)
            assert await watch.next(wait=0.2) is None
    assert seen == {name: list(range(count)) for name, count in written.items()}


async def test_a_topic_that_goes_while_the_server_is_down_is_told(
    server: Server, connect: Any
) -> None:
    async with connect(server.url, **PATIENT) as db:
        await db.topic("a").append(1)
        await db.topic("b").append(1)
        async with db.watch({"a": 0, "b": 0}, events=True) as watch:
            first = [await watch.next(wait=60) for _ in range(4)]
            assert datas(first) == [1, 1]
            await asyncio.to_thread(server.kill)
            with te.open(server.data_dir) as offline:
                offline.topic("a").drop()
                offline.topic("b").append(2)
            await asyncio.to_thread(server.start)
            told = [await watch.next(wait=60) for _ in range(3)]
            assert te.TopicDeleted("a") in told
            assert datas(told) == [2]
            assert te.CaughtUp("b", 2) in told
            assert watch.cursor == {"b": 2}
            await db.topic("a").append("new")
            came: list[Any] = []
            while not datas(came):
                came.append(await watch.next(wait=60))
            assert datas(came) == ["new"]


async def test_jobs_are_worked_off(server: Server, connect: Any) -> None:
    done: set[int] = set()
    async with connect(server.url, **PATIENT) as db:
        jobs = await db.queue("jobs", retry_backoff=0, lease=2)
        count = 40 * (KILLS + 1)
        await jobs.append(list(range(count)))

        async def worker() -> None:
            stream = jobs.work("w", max=4)
            try:
                while len(done) < count:
                    job = await anext(stream)
                    if await job.ack():
                        done.add(job.data)
                    await asyncio.sleep(0.005)
            finally:
                await stream.close()

        working = asyncio.create_task(worker())
        await kill_and_restart(server, lambda: math.inf if working.done() else len(done))
        await working
        assert done == set(range(count))
        assert (await jobs.state()).count == 0


async def test_a_directory_that_is_served_says_where(server: Server) -> None:
    with pytest.raises(te.Locked) as caught:
        te.open(server.data_dir)
    assert caught.value.pid == server.pid
    assert caught.value.url is not None
    assert f"te.connect({caught.value.url!r})" in str(caught.value)
    with te.connect(caught.value.url) as db:
        assert db.topic("t").append(1).first_seq == 1
