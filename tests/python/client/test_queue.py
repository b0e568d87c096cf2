"""Queues and consumers, in process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import topics_engine as te
from support.processes import until_all_wait
from support.waiting import DEADLINE, until


def test_a_job_is_done_or_given_back(db: te.Database) -> None:
    jobs = db.queue("jobs", retry_backoff=0)
    jobs.append([{"n": 1}, {"n": 2}])
    first, second = jobs.claim("w", max=16)
    assert (first.seq, first.data, first.deliveries) == (1, {"n": 1}, 1)
    with first:
        pass
    with pytest.raises(ZeroDivisionError), second:
        _ = 1 / 0
    (again,) = jobs.claim("w", wait=60)
    assert (again.seq, again.deliveries) == (2, 2)
    assert not second.ack(), "a stale lease changes nothing"
    assert again.ack()
    assert jobs.claim("w") == []
    assert jobs.state().queue == {
        "ready": 0,
        "in_flight": 0,
        "delayed": 0,
        "dead": 0,
        "dead_lettered": 0,
        "expired": 0,
    }


def test_a_lease_is_renewed_while_the_block_runs(db: te.Database) -> None:
    jobs = db.queue("jobs")
    jobs.append([1])
    (job,) = jobs.claim("w", lease=3)
    with job:
        until(lambda: jobs.peek()[0].deadline > job.deadline, 60)
        assert jobs.claim("v") == []
    assert jobs.state().count == 0


def test_options_of_jobs(db: te.Database) -> None:
    jobs = db.queue("jobs")
    jobs.append(
        [
            te.NewRecord("last", lane=9),
            te.NewRecord("a1", group="a"),
            te.NewRecord("a2", group="a", tag="t"),
            te.NewRecord("first", lane=0),
            te.NewRecord("later", delay=86400),
        ]
    )
    assert [j.data for j in jobs.claim("w", max=9)] == ["first", "a1", "last"]
    with pytest.raises(te.Conflict) as caught:
        db.topic("log").append(te.NewRecord(1, lane=3))
    assert caught.value.code == "not_a_queue"
    with pytest.raises(te.InvalidRequest):
        jobs.append(te.NewRecord(1, lane=10))


def test_a_claim_waits_for_a_job(db: te.Database) -> None:
    jobs = db.queue("jobs")
    claimed: list[te.Job] = []
    thread = threading.Thread(target=lambda: claimed.extend(jobs.claim("w", wait=60)), daemon=True)
    thread.start()
    until_all_wait()
    jobs.append([1])
    thread.join(60)
    assert [job.data for job in claimed] == [1]


def test_work_follows_and_gives_back(db: te.Database) -> None:
    jobs = db.queue("jobs")
    jobs.append([1, 2, 3])
    stream = jobs.work("w", max=2)
    with next(stream) as job:
        assert job.data == 1
    assert next(stream).data == 2
    stream.close()
    assert [j.data for j in jobs.claim("v", max=9)] == [2, 3]


def test_dead_letters_and_back(data_dir: Path) -> None:
    with te.open(data_dir) as db:
        jobs = db.queue("jobs", max_deliveries=1, dead_letter="jobs.dead", retry_backoff=0)
        jobs.append(["x"])
        jobs.claim("w")[0].nack()
        assert jobs.claim("w") == []
        # The move happens in the background, and creates the topic if nobody has.
        letters = db.topic("jobs.dead")
        letters.ensure()
        letters.wait(0, timeout=DEADLINE)
        (dead,) = letters.read()
        assert isinstance(dead, te.Record)
        assert dead.meta is not None
        assert dead.meta["$dead_letter_from"] == "jobs"
        assert dead.meta["$dead_letter_reason"] == "max_deliveries"
    with te.open(data_dir) as db:
        assert db.redrive("jobs.dead", dry_run=True) == 1
        assert db.redrive("jobs.dead") == 1
        (job,) = db.queue("jobs").claim("w")
        assert (job.data, job.deliveries, job.record.meta) == ("x", 1, None)


def test_a_consumer_goes_on_where_it_was(data_dir: Path) -> None:
    with te.open(data_dir) as db:
        orders = db.topic("orders")
        orders.append(list(range(5)))
        c = orders.consumer("billing")
        batch = c.read(max_records=2)
        assert [r.data for r in batch if isinstance(r, te.Record)] == [0, 1]
        assert (batch.cursor, batch.lag) == (2, 3)
        c.commit(batch.cursor)
        assert len(c.read(checkpoint=False)) == 3
    with te.open(data_dir) as db:
        c = db.topic("orders").consumer("billing")
        assert (c.cursor, c.mode) == (2, "at_least_once")
        assert c.seek(te.LATEST) == 5
        assert len(c.read()) == 0
        with pytest.raises(te.Conflict):
            db.topic("orders").consumer("billing", "at_most_once")
        once = db.topic("orders").consumer("once", "at_most_once")
        assert len(once.read(max_records=3)) == 3
        assert once.cursor == 3
