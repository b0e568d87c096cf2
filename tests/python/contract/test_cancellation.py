"""A cancelled `await` loses nothing that was on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

import topics_engine as te
from support.faulty_server import Faulty
from topics_engine.remote import async_transport
from topics_engine.remote.greenlets import wait
from topics_engine.remote.transport import Answer

from .adapter import CANCELLABLE, Open, all_of, datas, eventually, take, until_calls_wait

cancellable = pytest.mark.parametrize("db", CANCELLABLE, indirect=True)
# What is on its way from a server when its client lets go is not taken back: leases run out, and
# what `at_most_once` has stored as read is lost.
in_process = pytest.mark.parametrize("db", ["aio"], indirect=True)


async def cancel(task: asyncio.Task[Any]) -> Any:
    """Cancels a task; its outcome if it came first."""
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


@in_process
@pytest.mark.parametrize("durable", [False, True])
async def test_claims_lose_no_job(db: Any, durable: bool) -> None:
    jobs = await db.queue("jobs", leases_durable=durable)
    taken = 0
    for round_ in range(60):
        claim = asyncio.create_task(jobs.claim("w", wait=60))
        await turns(2)
        await jobs.append(round_)
        await turns(round_ % 20)
        if round_ % 3 == 0:
            await asyncio.sleep(0.001)  # sleep: some cancellations come late
        for job in await cancel(claim) or []:
            taken += await job.ack()

    async def all_back() -> bool:
        queue = (await jobs.state()).queue
        return queue["in_flight"] == 0 and queue["ready"] == 60 - taken

    await eventually(all_back)
    assert len(await jobs.claim("v", max=100)) == 60 - taken


@pytest.mark.parametrize(
    ("db", "mode"),
    [("aio", "at_least_once"), ("aio", "at_most_once"), ("remote-aio", "at_least_once")],
    indirect=["db"],
)
async def test_reads_of_a_consumer_lose_no_record(db: Any, mode: str) -> None:
    t = db.topic("t")
    await t.append(list(range(200)))
    c = await t.consumer("c", mode)
    seen: list[Any] = []
    for round_ in range(60):
        read = asyncio.create_task(c.read(max_records=2))
        await turns(round_ % 10)
        if round_ % 3 == 0:
            await asyncio.sleep(0.002)  # sleep: some cancellations come late
        seen += datas(await cancel(read) or [])
    # What was on its way when it was cancelled comes back first, or a little later.
    async with asyncio.timeout(60):
        while len(seen) < 200:
            seen += datas(await c.read(wait=0.002))
    assert sorted(seen) == list(range(200))


@cancellable
async def test_a_watch_goes_on_after_a_cancelled_wait(db: Any) -> None:
    a = db.topic("a")
    await a.append(-1)
    async with db.watch("a") as watch:
        seen: list[Any] = []
        for round_ in range(60):
            wait = asyncio.create_task(watch.next(wait=60))
            await turns(1)
            await a.append(round_)
            await turns(round_ % 6)
            seen += datas([await cancel(wait)])
        seen += datas(await take(watch, 60 - len(seen)))
        assert seen == list(range(60))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.01)
        await a.append("after")
        assert (await anext(watch)).data == "after"


@cancellable
async def test_work_goes_on_after_a_cancelled_wait(db: Any) -> None:
    jobs = await db.queue("jobs")
    async with jobs.work("w", max=3) as stream:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)
        await jobs.append([1, 2])
        async with await anext(stream) as job:
            assert job.data == 1
    assert [j.data for j in await jobs.claim("v", 9, wait=60)] == [2]


@cancellable
async def test_a_cancelled_block_gives_its_job_back(db: Any) -> None:
    jobs = await db.queue("jobs", retry_backoff=0)
    await jobs.append("x")
    (job,) = await jobs.claim("w")

    async def work() -> None:
        async with job:
            await asyncio.sleep(3600)  # sleep: until it is cancelled

    task = asyncio.create_task(work())
    await turns(3)
    await cancel(task)
    (again,) = await jobs.claim("v", wait=60)
    # It was stopped, and has not failed.
    assert (again.data, again.deliveries) == ("x", 1)


@cancellable
@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_a_cancelled_write_is_stored_or_not_and_a_repeat_is_exact(
    db: Any, durability: str
) -> None:
    t = db.topic("t", durability=durability)
    await t.create()
    for i in range(40):
        write = asyncio.create_task(t.append([i, i], idempotency_key=f"k{i}"))
        await turns(i % 4)
        await cancel(write)
    for i in range(40):
        await t.append([i, i], idempotency_key=f"k{i}")
    records = datas(await all_of(t.read()))
    assert sorted(records) == sorted([*range(40), *range(40)])
    assert records[::2] == records[1::2], "batches are whole"


@cancellable
async def test_a_cancelled_read_fetches_again(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(2500)))
    read = t.read()
    seen: list[Any] = []
    for i in range(2500):
        step = asyncio.create_task(anext(read))
        await turns(i % 3)
        item = await cancel(step)
        seen += datas([item])
        if len(seen) >= 10:
            break
    seen += datas(await all_of(read))
    assert seen == list(range(2500))


@pytest.mark.parametrize("open_db", CANCELLABLE, indirect=True)
async def test_waits_that_time_out_leave_nothing(open_db: Open) -> None:
    async with open_db() as db:
        t, jobs = db.topic("t"), await db.queue("jobs")
        await t.append(1)
        c = await t.consumer("c", start="latest")
        for _ in range(20):
            async with db.watch("t") as watch:
                for wait in (t.wait(1), jobs.claim("w", wait=60), c.read(wait=60), anext(watch)):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(wait, 0.002)
        if db.settings:
            assert (await db.metrics())["watch_streams"] == 0

        async def let_go() -> bool:
            return (await db.metrics())["watch_streams"] == 0

        await eventually(let_go)
        # A claim whose client is gone is forgotten like its stream.
        await until_calls_wait()
        await t.append(2)
        await jobs.append(3)
        assert [j.data for j in await jobs.claim("w", wait=60)] == [3]
        assert datas(await c.read()) == [2]


class Cancellation:
    """Cancels one wait of the asyncio client: at its beginning, or when its answer is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_answers: bool) -> None:
        self._at_answers = at_answers
        # How many more waits there are up to the cancelled one; `None` if none is cancelled.
        self._left: int | None = None
        monkeypatch.setattr(async_transport, "wait", self._wait)

    def _is_due(self) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        return self._left == 0

    def _wait(self, awaitable: Any) -> Any:
        if not self._at_answers and self._is_due():
            awaitable.close()
            raise asyncio.CancelledError
        answer = wait(awaitable)
        # What a stream has received when its reader is cancelled stays there.
        if self._at_answers and isinstance(answer, Answer) and self._is_due():
            raise asyncio.CancelledError
        return answer

    async def at_each(self, one: Callable[[int], Awaitable[Callable[[], Awaitable[bool]]]]) -> None:
        """Repeats what `one` prepares, until it is done, with the first wait cancelled, then with
        the second, and so on.
        """
        for n in count(1):
            is_done = await one(n)
            self._left = n
            while True:
                try:
                    if await is_done():
                        break
                except asyncio.CancelledError:
                    assert self._left == 0, "the test itself was cancelled"
            left, self._left = self._left, None
            if left > 0:
                return


at_every_wait = pytest.mark.parametrize("at_answers", [False, True])


@at_every_wait
@pytest.mark.parametrize("is_broken", [False, True])
async def test_a_watch_of_many_topics_may_be_cancelled_at_every_wait(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, name: str, at_answers: bool, is_broken: bool
) -> None:
    """The events of more than 64 topics do not have the ids of those that join."""
    cancellation, seen = Cancellation(monkeypatch, at_answers), list[Any]()
    name += f"{at_answers}{is_broken}".lower()
    async with te.aio.connect(faulty.url) as db:
        for n in range(65):
            await db.topic(f"{name}.{n}").append("old")
        async with db.watch({f"{name}.*": te.LATEST}, gaps="raise") as watch:

            async def one(n: int) -> Callable[[], Awaitable[bool]]:
                if is_broken:
                    faulty.break_streams()
                await db.topic(f"{name}.new{n}").append([n, -n])

                async def is_done() -> bool:
                    item = await watch.next(wait=60)
                    assert item is not None, f"the records of topic {n} are lost"
                    seen.append(item.data)
                    return bool(item.data == -n)

                return is_done

            await cancellation.at_each(one)
            assert seen == [data for n in range(1, len(seen) // 2 + 1) for data in (n, -n)]
            assert watch.cursor[f"{name}.new1"] == 2
    assert len(seen) > 2


@at_every_wait
async def test_a_read_may_be_cancelled_at_every_wait(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, name: str, at_answers: bool
) -> None:
    cancellation = Cancellation(monkeypatch, at_answers)
    async with te.aio.connect(faulty.url) as db:
        t = db.topic(f"{name}{at_answers}".lower())
        await t.append(list(range(2500)))

        async def one(n: int) -> Callable[[], Awaitable[bool]]:
            read, seen = t.read(), list[Any]()

            async def is_done() -> bool:
                async for record in read:
                    seen.append(record.data)
                assert seen == list(range(2500))
                return True

            return is_done

        await cancellation.at_each(one)


@at_every_wait
async def test_a_consumer_may_be_cancelled_at_every_wait(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, name: str, at_answers: bool
) -> None:
    cancellation, seen = Cancellation(monkeypatch, at_answers), list[Any]()
    async with te.aio.connect(faulty.url) as db:
        t = db.topic(f"{name}{at_answers}".lower())
        await t.create()
        c = await t.consumer("c", auto_commit=True)

        async def one(n: int) -> Callable[[], Awaitable[bool]]:
            await t.append([n, -n])

            async def is_done() -> bool:
                seen.extend(datas(await c.read(max_records=1, wait=60)))
                return bool(seen and seen[-1] == -n)

            return is_done

        await cancellation.at_each(one)
    assert seen == [data for n in range(1, len(seen) // 2 + 1) for data in (n, -n)]


async def test_work_may_be_cancelled_at_every_wait(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cancellation, seen = Cancellation(monkeypatch, at_answers=False), list[Any]()
    async with te.aio.connect(faulty.url) as db:
        jobs = await db.queue(name)
        async with jobs.work("w", max=100) as stream:

            async def one(n: int) -> Callable[[], Awaitable[bool]]:
                await jobs.append([n, -n])

                async def is_done() -> bool:
                    seen.append((await anext(stream)).data)
                    return bool(seen[-1] == -n)

                return is_done

            await cancellation.at_each(one)
    assert seen == [data for n in range(1, len(seen) // 2 + 1) for data in (n, -n)]
