"""Queues: claims, leases, fences, dead letters, redrive."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import topics_engine as te

from .adapter import Open, abandon, all_of, eventually, plain, until_calls_wait


async def test_a_nack_without_a_delay_waits_for_the_backoff(db: Any) -> None:
    jobs = await db.queue("jobs", retry_backoff="60s")
    await jobs.append([1, 2, 3, 4])
    first, second, third, fourth = await jobs.claim("w", max=4)
    await first.nack()
    assert await jobs.nack([second], error="no") == []
    await third.nack(delay=0)
    assert await jobs.nack([fourth], delay=0) == []
    assert [job.data for job in await jobs.claim("w", max=4)] == [3, 4]
    assert (await jobs.state()).queue["delayed"] == 2


async def test_a_job_is_done_or_given_back(db: Any) -> None:
    jobs = await db.queue("jobs", retry_backoff=0)
    await jobs.append([{"n": 1}, {"n": 2}])
    first, second = await jobs.claim("w", max=16)
    assert (first.seq, first.data, first.deliveries, first.worker) == (1, {"n": 1}, 1, "w")
    assert first.lease == (await jobs.state()).config["lease"]
    async with first:
        pass
    with pytest.raises(ZeroDivisionError):
        async with second:
            _ = 1 / 0
    (again,) = await jobs.claim("w", wait=60)
    assert (again.seq, again.deliveries) == (2, 2)
    # I6: a stale lease changes nothing.
    assert not await second.ack()
    assert not await second.nack()
    assert not await second.extend()
    assert await again.ack()
    assert await jobs.claim("w") == []
    state = await jobs.state()
    assert set(state.queue.values()) == {0}
    assert state.type == "queue"


async def test_a_block_whose_lease_is_over_says_so(db: Any) -> None:
    jobs = await db.queue("jobs", retry_backoff=0)
    await jobs.append(["acked by another", "deleted", "finished"])
    lost, deleted, finished = await jobs.claim("w", 3, lease=0.3)
    abandon(lost)
    (other,) = await jobs.claim("v", wait=60)
    with pytest.raises(te.LeaseLost, match="it ran out") as caught:
        async with lost:
            pytest.fail("a block begins without a lease")
    assert (caught.value.reason, caught.value.code) == ("ended", "lease_lost")
    assert caught.value.detail == {"queue": jobs.name, "seq": 1, "reason": "ended"}
    with pytest.raises(te.LeaseLost, match="acked or deleted") as caught:
        async with deleted:
            await jobs.remove(2, force=True)
    assert caught.value.reason == "gone"
    assert await finished.ack()
    with pytest.raises(te.LeaseLost, match="before"):
        await finished.__aenter__()
    assert await other.ack()


async def test_a_job_that_was_ended_inside_its_block_is_left_alone(db: Any) -> None:
    jobs = await db.queue("jobs", retry_backoff=0)
    await jobs.append(["acked", "nacked", "released"])
    acked, nacked, released = await jobs.claim("w", 3)
    async with acked:
        assert await acked.ack()
    async with nacked:
        assert await nacked.nack(0, error="why")
    async with released:
        assert await released.release()
    left = [(p.data, p.deliveries, p.error) for p in await jobs.peek(state="ready")]
    assert left == [("nacked", 1, "why"), ("released", 0, None)]


async def test_a_lease_is_renewed_from_the_claim_on(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append([1, 2])
    job, waiting = await jobs.claim("w", 2, lease=3)
    assert job.lease == 3

    async def renewed() -> bool:
        return all(seen.deadline > job.deadline for seen in await jobs.peek())

    async with job:
        await eventually(renewed)
        assert await jobs.claim("v") == []
    async with waiting:
        pass
    assert (await jobs.state()).count == 0


async def test_jobs_of_a_stream_are_renewed_before_they_are_returned(db: Any) -> None:
    jobs = await db.queue("jobs", lease=3)
    await jobs.append([1, 2, 3])
    work = jobs.work("w", max=2)
    job = await anext(work)
    async with job:
        pass

    async def filled() -> list[Any]:
        # The stream has the place of the first job for the third.
        return [p for p in await jobs.peek(state="leased") if p.seq > 1]

    await eventually(filled)
    before = max(p.deadline for p in await filled())

    async def renewed() -> bool:
        seen = await filled()
        return bool(seen) and all(p.deadline > before for p in seen)

    await eventually(renewed)
    await work.close()
    assert [p.deliveries for p in await jobs.peek(state="ready")] == [0, 0]


async def test_a_lease_runs_out_and_can_be_extended(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append(["kept", "lost"])
    (kept,) = await jobs.claim("w", lease=60)
    assert await kept.extend(3600)
    (seen,) = await jobs.peek(state="leased")
    assert seen.deadline - kept.deadline > timedelta(minutes=30)
    (lost,) = await jobs.claim("w", lease=0.1)
    abandon(lost)
    (again,) = await jobs.claim("v", 2, wait=60)
    assert (again.data, again.deliveries) == ("lost", 2)
    assert not await lost.ack()
    assert await kept.ack()


async def test_options_of_jobs(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append(
        [
            te.NewRecord("last", lane=9),
            te.NewRecord("a1", group="a"),
            te.NewRecord("a2", group="a", tag="t"),
            te.NewRecord("first", lane=0),
            te.NewRecord("later", delay=86400),
        ]
    )
    assert [j.data for j in await jobs.claim("w", max=9)] == ["first", "a1", "last"]
    with pytest.raises(te.Conflict) as caught:
        await db.topic("log").append(te.NewRecord(1, lane=3))
    assert caught.value.code == "not_a_queue"
    with pytest.raises(te.InvalidRequest):
        await jobs.append(te.NewRecord(1, lane=10))
    with pytest.raises(te.InvalidRequest):
        await jobs.claim("")
    with pytest.raises(te.InvalidRequest):
        await jobs.claim("w", 0)


async def test_a_peek_leases_nothing(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append(
        [te.NewRecord(1, lane=7), te.NewRecord(2), te.NewRecord(3, delay=86400, group="ü")]
    )
    (job,) = await jobs.claim("w")
    assert job.data == 2
    seen = {p.data: p for p in await jobs.peek()}
    assert {d: (p.state, p.lane, p.group, p.worker) for d, p in seen.items()} == {
        1: ("ready", 7, None, None),
        2: ("leased", 5, None, "w"),
        3: ("delayed", 5, "ü", None),
    }
    assert seen[2].lease_id == job.lease_id
    assert [p.data for p in await jobs.peek(state="ready")] == [1]
    await jobs.append(4)
    assert [p.data for p in await jobs.peek(1)] == [4, 2, 3], "so many of each state"
    with pytest.raises(te.InvalidRequest):
        await jobs.peek(state="lost")
    assert (await jobs.state()).queue["in_flight"] == 1


async def test_times_of_jobs_are_aware_datetimes_and_lease_ids_text(db: Any) -> None:
    jobs = await db.queue("jobs", lease="1h")
    await jobs.append([te.NewRecord(1), te.NewRecord(2, delay="2h")])
    (job,) = await jobs.claim("w")
    assert (job.deadline - job.time) // timedelta(minutes=59) == 1
    assert isinstance(job.lease_id, str)
    seen = {p.data: p for p in await jobs.peek()}
    # Leases end by a clock that is not set; each answer has the time of day that this is now.
    assert abs(seen[1].deadline - job.deadline) < timedelta(seconds=10)
    assert seen[1].lease_id == job.lease_id
    assert abs(seen[2].visible_at - seen[2].time - timedelta(hours=2)) < timedelta(seconds=10)
    assert (seen[1].visible_at, seen[2].deadline, seen[2].lease_id) == (None, None, None)
    for time in (job.time, job.deadline, seen[2].visible_at):
        assert time.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - time) < timedelta(hours=3)
    assert f"deadline={job.deadline!r}" in repr(plain(job))
    assert await job.extend("2h")
    assert await job.ack()


async def test_a_claim_waits_for_a_job(db: Any) -> None:
    jobs = await db.queue("jobs")
    claim = asyncio.create_task(jobs.claim("w", wait=60))
    await until_calls_wait()
    await jobs.append(1)
    (job,) = await claim
    assert job.data == 1
    assert await jobs.claim("w", wait=0.01) == []


async def test_work_follows_and_gives_back(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append([1, 2, 3])
    stream = jobs.work("w", max=2)
    async with await anext(stream) as job:
        assert job.data == 1
    assert (await anext(stream)).data == 2
    await stream.close()
    # A server learns of it from the connection.
    wait = 0 if db.settings else 60
    assert [j.data for j in await jobs.claim("v", max=9, wait=wait)] == [2, 3]


async def test_closing_a_stream_of_jobs_ends_its_iteration(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append([1, 2])
    stream = jobs.work("w", max=2)
    done: list[Any] = []

    async def follow() -> None:
        async for job in stream:
            done.append(job.data)
            await job.ack()

    follower = asyncio.create_task(follow())
    while len(done) < 2:
        await asyncio.sleep(0.001)
    await until_calls_wait()  # for the next job
    assert not follower.done()
    await stream.close()
    await stream.close()
    async with asyncio.timeout(60):
        await follower
    assert done == [1, 2]
    assert [item async for item in stream] == []
    await jobs.append(3)
    wait = 0 if db.settings else 60
    assert [j.data for j in await jobs.claim("v", wait=wait)] == [3]


async def test_dead_letters_and_back(open_db: Open) -> None:
    async with open_db() as db:
        jobs = await db.queue("jobs", max_deliveries=1, dead_letter="dead", retry_backoff=0)
        await jobs.append(["x"])
        (job,) = await jobs.claim("w")
        await job.nack()
        assert await jobs.claim("w") == []

        async def has_moved() -> bool:
            return (await jobs.state()).queue["dead_lettered"] == 1

        await eventually(has_moved)
        (dead,) = await all_of(db.topic("dead").read())
        assert dead.meta["$dead_letter_from"] == "jobs"
        assert dead.meta["$dead_letter_reason"] == "max_deliveries"
    async with open_db() as db:
        assert await db.redrive("dead", dry_run=True) == 1
        assert await db.redrive("dead") == 1
        (job,) = await (await db.queue("jobs")).claim("w")
        assert (job.data, job.deliveries, job.record.meta) == ("x", 1, None)


async def test_dead_jobs_are_revived(db: Any) -> None:
    jobs = await db.queue("jobs", max_deliveries=1, retry_backoff=0)
    await jobs.append(["x"])
    (job,) = await jobs.claim("w")
    await job.nack()
    assert await jobs.claim("w") == []
    assert [p.state for p in await jobs.peek()] == ["dead"]
    assert await jobs.redrive() == 1
    assert [j.data for j in await jobs.claim("w")] == ["x"]


@pytest.mark.parametrize("durable", [False, True])
async def test_leases_over_a_restart(open_db: Open, durable: bool) -> None:
    async with open_db() as db:
        jobs = await db.queue("jobs", leases_durable=durable)
        await jobs.append(1)
        (job,) = await jobs.claim("w")
    async with open_db() as db:
        jobs = await db.queue("jobs")
        assert len(await jobs.claim("v")) == (0 if durable else 1)
        (seen,) = await jobs.peek()
        assert (seen.lease_id == job.lease_id) is durable


async def test_queues_are_dropped_like_topics(db: Any) -> None:
    jobs = await db.queue("jobs")
    claim = asyncio.create_task(jobs.claim("w", wait=60))
    await until_calls_wait()
    assert await jobs.drop()
    with pytest.raises(te.NotFound):
        await claim
    assert not await jobs.drop()
    assert await all_of(db.queues()) == []


async def test_many_workers_share_a_queue_without_a_repeat(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append(list(range(100)))
    done: list[int] = []

    async def worker(name: str) -> None:
        while found := await jobs.claim(name, max=3):
            for job in found:
                async with job:
                    done.append(job.data)

    await asyncio.gather(*(worker(f"w{i}") for i in range(4)))
    assert sorted(done) == list(range(100))

    async def empty() -> bool:
        return (await jobs.state()).count == 0

    await eventually(empty)


async def test_the_error_of_a_failed_job_is_kept(db: Any) -> None:
    jobs = await db.queue("jobs", max_deliveries=3, dead_letter="dead", retry_backoff=0)
    await jobs.append("x")
    (job,) = await jobs.claim("w")
    assert await job.nack(0, error="first \U0001f980")
    (seen,) = await jobs.peek()
    assert (seen.state, seen.error) == ("ready", "first \U0001f980")
    (job,) = await jobs.claim("w")
    with pytest.raises(ZeroDivisionError):
        async with job:
            _ = 1 / 0
    (seen,) = await jobs.peek()
    assert seen.error == "ZeroDivisionError: division by zero"
    (job,) = await jobs.claim("w")
    with pytest.raises(ValueError, match="xxx"):
        async with job:
            raise ValueError("x\ud800" + "x" * 5000)

    async def has_come() -> bool:
        return (await jobs.state()).queue["dead_lettered"] == 1

    await eventually(has_come)
    (letter,) = await all_of(db.topic("dead").read())
    assert letter.meta["$dead_letter_error"] == ("ValueError: x?" + "x" * 5000)[:1024]
    for wrong in (5, b"x", "\ud800"):
        with pytest.raises(te.InvalidRequest, match="error"):
            await job.nack(error=wrong)


async def test_jobs_are_removed_and_promoted(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append([te.NewRecord(1), te.NewRecord(2, delay="1h"), te.NewRecord(3), 4])
    (job,) = await jobs.claim("w")
    assert await jobs.promote([2, 2, 3, 99]) == 1
    assert [p.data for p in await jobs.peek(state="ready")] == [2, 3, 4]
    assert await jobs.remove([1, 3]) == 1, "1 is leased"
    assert await jobs.remove(4) == 1
    assert await jobs.remove([1], force=True) == 1
    assert not await job.ack()
    assert [j.data for j in await jobs.claim("w", 9)] == [2]
    for wrong in (-1, "1", [1.5], None):
        with pytest.raises(te.InvalidRequest, match="seqs"):
            await jobs.remove(wrong)
        with pytest.raises(te.InvalidRequest, match="seqs"):
            await jobs.promote(wrong)


async def test_a_paused_queue_goes_on(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append([1, 2])
    (job,) = await jobs.claim("w")
    await jobs.pause()
    assert (await jobs.state()).config["paused"] is True
    assert await jobs.claim("w", wait=0.05) == []
    assert await job.ack()
    waiting = asyncio.ensure_future(jobs.claim("v", wait=60))
    await until_calls_wait()
    await jobs.resume()
    assert [j.data for j in await waiting] == [2]
    assert (await jobs.state()).config["paused"] is False


async def test_the_state_of_a_queue_is_that_of_its_topic(db: Any) -> None:
    jobs = await db.queue("jobs")
    await jobs.append([1, 2])
    (job,) = await jobs.claim("w")
    state = await jobs.state()
    assert type(state) is te.QueueState
    assert (state.queue["ready"], state.queue["in_flight"], state.count) == (1, 1, 2)
    assert await job.ack()
    await jobs.drop()
    await db.topic("jobs").append("now a log")
    with pytest.raises(te.Conflict) as caught:
        await jobs.state()
    assert caught.value.code == "not_a_queue"
