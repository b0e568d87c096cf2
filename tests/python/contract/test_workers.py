"""Workers: batches of acks, releases, the runner."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from typing import Any

import pytest

import topics_engine as te

from .adapter import Awaited, abandon, eventually


def handler(jobs: Any, work: Any) -> Any:
    """What `run` of this client takes; `work` does not wait."""

    async def handle(job: Any) -> None:
        work(job)

    return work if isinstance(jobs, Awaited) else handle


async def test_many_jobs_are_ended_in_one_call(db: Any) -> None:
    jobs = await db.queue("jobs", retry_backoff=0)
    await jobs.append(list(range(5)))
    mine = await jobs.claim("w", 4)
    (other,) = await jobs.claim("v", lease=0.3)
    abandon(other)
    await jobs.claim("u", wait=60)
    lost = await jobs.ack([*mine[:2], other])
    assert [job.seq for job in lost] == [5]
    assert await jobs.nack(mine[2:3], error="bad") == []
    assert await jobs.release(mine[3:]) == []
    ready = [(p.seq, p.deliveries, p.error) for p in await jobs.peek(state="ready")]
    assert ready == [(3, 1, "bad"), (4, 0, None)]
    assert await jobs.ack([]) == []
    with pytest.raises(te.InvalidRequest, match="jobs must be a sequence of jobs"):
        await jobs.ack(mine[0])


async def test_a_lease_is_of_one_queue(db: Any, name: str) -> None:
    queues = [await db.queue(f"{name}-{kind}") for kind in ("a", "b")]
    jobs = []
    for queue in queues:
        await queue.append(["work"])
        jobs += await queue.claim("w")
    mine, other = jobs
    # Same worker, same seq, both the first lease of their queue.
    assert mine.seq == other.seq
    assert mine.lease_id != other.lease_id
    message = f"job 1 is of queue '{name}-b', not of '{name}-a': use db.queue('{name}-b')"
    for verb in (queues[0].ack, queues[0].nack, queues[0].release):
        with pytest.raises(te.InvalidRequest, match=re.escape(message)):
            await verb([mine, other])
    assert [await queue.ack([job]) for queue, job in zip(queues, jobs, strict=True)] == [[], []]


async def test_what_was_not_begun_is_no_delivery(db: Any) -> None:
    jobs = await db.queue("jobs", max_deliveries=2, dead_letter="dead", retry_backoff=0)
    await jobs.append(["failed", "waits", "waits too"])
    for _ in range(2):
        # A stream that is closed: one job was returned, the others were not.
        work = jobs.work("w", max=3)
        job = await anext(work)
        assert (job.data, await job.nack(0)) == ("failed", True)
        await work.close()

    async def moved() -> bool:
        return (await jobs.state()).queue["dead_lettered"] == 1

    await eventually(moved)
    for _ in range(3):
        # A block that is cancelled, or whose process is told to stop.
        for job in await jobs.claim("w", 2):
            with pytest.raises(KeyboardInterrupt):
                async with job:
                    raise KeyboardInterrupt
    assert [(p.data, p.deliveries) for p in await jobs.peek()] == [("waits", 0), ("waits too", 0)]


async def test_a_job_that_a_closed_stream_had_returned_was_delivered(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append(["x"])
    work = jobs.work("w")
    job = await anext(work)
    await work.close()
    (again,) = await jobs.claim("v", wait=60)
    assert (job.deliveries, again.deliveries) == (1, 2)
    with pytest.raises(te.LeaseLost):
        async with job:
            pass


async def test_a_run_works_until_it_is_stopped(db: Any, caplog: pytest.LogCaptureFixture) -> None:
    jobs = await db.queue("jobs", max_deliveries=2, dead_letter="dead", retry_backoff=0)
    done: Counter[int] = Counter()
    failed: list[tuple[int, str]] = []
    lock = threading.Lock()

    def work(job: Any) -> None:
        with lock:
            done[job.data] += 1
        if job.data == 13:
            raise ValueError("unlucky")

    def on_error(job: Any, error: Exception) -> None:
        failed.append((job.data, str(error)))

    given = handler(jobs, work)
    run = asyncio.ensure_future(jobs.run(given, worker="w", concurrency=4, on_error=on_error))
    await jobs.append(list(range(30)))

    async def all_done() -> bool:
        counts = (await jobs.state()).queue
        return bool(counts["dead_lettered"]) and not (counts["ready"] or counts["in_flight"])

    await eventually(all_done)
    plain = jobs._handle if isinstance(jobs, Awaited) else jobs
    plain.stop()
    await run
    assert done == Counter(range(30)) + Counter([13])
    assert failed == [(13, "unlucky")] * 2
    (dead,) = [record async for record in db.topic("dead").read()]
    assert dead.meta["$dead_letter_error"] == "ValueError: unlucky"
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_a_handler_that_exits_has_failed(db: Any) -> None:
    jobs = await db.queue("jobs", max_deliveries=2, dead_letter="dead", retry_backoff=0)
    plain = jobs._handle if isinstance(jobs, Awaited) else jobs
    done: list[str] = []
    failed: list[tuple[str, str]] = []

    def work(job: Any) -> None:
        if job.data == "poison":
            raise SystemExit("bad option")
        done.append(job.data)

    def on_error(job: Any, error: Exception) -> None:
        assert isinstance(error.__cause__, SystemExit)
        failed.append((job.data, str(error)))
        raise error

    given = handler(jobs, work)
    run = asyncio.ensure_future(jobs.run(given, worker="w", concurrency=1, on_error=on_error))
    await jobs.append(["poison", "after it"])

    async def all_done() -> bool:
        counts = (await jobs.state()).queue
        return bool(counts["dead_lettered"]) and not (counts["ready"] or counts["in_flight"])

    await eventually(all_done)
    plain.stop()
    await run
    assert done == ["after it"]
    assert failed == [("poison", "the handler ended with SystemExit: bad option")] * 2
    (dead,) = [record async for record in db.topic("dead").read()]
    assert dead.meta["$dead_letter_error"] == "SystemExit: bad option"


async def test_a_run_raises_what_will_not_pass(db: Any) -> None:
    jobs = await db.queue("jobs")
    given = handler(jobs, lambda job: None)
    with pytest.raises(te.InvalidRequest, match="concurrency"):
        await jobs.run(given, worker="w", concurrency=0)
    await jobs.drop()
    await db.topic("jobs").append("a log")
    with pytest.raises(te.Conflict) as caught:
        await jobs.run(given, worker="w")
    assert caught.value.code == "not_a_queue"


async def test_a_run_gives_back_what_it_has_not_begun(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append([1, 2, 3])
    plain = jobs._handle if isinstance(jobs, Awaited) else jobs
    seen: list[int] = []

    def work(job: Any) -> None:
        seen.append(job.data)
        plain.stop()

    await jobs.run(handler(jobs, work), worker="w", concurrency=1)
    assert seen == [1]
    assert [(p.data, p.deliveries) for p in await jobs.peek()] == [(2, 0), (3, 0)]


async def test_a_run_ends_jobs_that_the_handler_has_ended(
    db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = await db.queue("jobs", retry_backoff=0)
    await jobs.append(["once"])
    handled = []

    async def handle(job: Any) -> None:
        handled.append(job.data)
        await job.ack()
        jobs.stop()

    def handle_sync(job: Any) -> None:
        handled.append(job.data)
        job.ack()
        jobs._handle.stop()

    given = handle_sync if isinstance(jobs, Awaited) else handle
    await jobs.run(given, worker="w")
    assert handled == ["once"]
    assert (await jobs.state()).count == 0
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
