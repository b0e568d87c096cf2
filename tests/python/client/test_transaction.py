"""Transactions in process."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from topics_engine.client.embedded import EmbeddedBackend


def data(db: te.Database, topic: str) -> list[object]:
    return [r.data for r in db.topic(topic).read() if isinstance(r, te.Record)]


def request(
    db: te.Database, verb: str, part: str, body: Any = None, query: str = ""
) -> dict[str, Any]:
    backend = db._backend
    assert isinstance(backend, EmbeddedBackend)
    raw = None if body is None else json.dumps(body).encode()
    found: dict[str, Any] = json.loads(backend.engine.call(verb, "", part, query.encode(), raw))
    return found


def test_consume_process_produce(db: te.Database) -> None:
    source = db.topic("in")
    source.append([1, 2, 3])
    c = source.consumer("c")
    jobs = db.queue("jobs")
    jobs.append(["a", "b"])
    job, _ = jobs.claim("w", max=2)
    with db.transaction() as tx:
        tx.append("out", [10, 20], tag="t", expect_head=0)
        tx.append(db.topic("other"), {"x": 1}, origin="n", meta={"k": "v"})
        tx.commit(c, 2)
        tx.ack(job)
        with pytest.raises(te.InvalidRequest, match="after the end of its `with` block"):
            _ = tx.result
    assert tx.result == te.Committed(0, False, {"other": (1, 1), "out": (1, 2)})
    assert data(db, "out") == [10, 20]
    assert c.cursor == 2
    assert data(db, "jobs") == ["b"]
    (record,) = db.topic("other").tail(1)
    assert isinstance(record, te.Record)
    assert (record.origin, record.meta) == ("n", {"k": "v"})


def attempt(
    db: te.Database,
    *rows: tuple[str, object, int | None],
    ack: te.Job | None = None,
    writer: str | None = None,
    epoch: int | None = None,
    idempotency_key: str | None = None,
) -> te.Committed:
    with db.transaction(writer, epoch, idempotency_key=idempotency_key) as tx:
        for topic, value, head in rows:
            tx.append(topic, value, expect_head=head)
        if ack is not None:
            tx.ack(ack)
    return tx.result


def fail(db: te.Database) -> None:
    with db.transaction() as tx:
        tx.append("out", 1)
        raise RuntimeError("no")


def test_an_exception_aborts(db: te.Database) -> None:
    with pytest.raises(RuntimeError, match="no"):
        fail(db)
    assert list(db.topics()) == []


def test_nothing_happens_unless_everything_can(db: te.Database) -> None:
    db.topic("out").append(1)
    jobs = db.queue("jobs")
    jobs.append(["a"])
    (job,) = jobs.claim("w")
    with pytest.raises(te.Conflict) as e:
        attempt(db, ("out", 2, 7), ack=job)
    assert (e.value.code, e.value.detail["head_seq"]) == ("head_mismatch", 1)
    job.nack(0)
    with pytest.raises(te.Conflict) as e:
        attempt(db, ("out", 2, None), ack=job)
    lost = {"queue": "jobs", "seq": 1, "reason": "ended"}
    assert (e.value.code, e.value.detail) == ("lease_lost", lost)
    assert isinstance(e.value, te.LeaseLost)
    assert (data(db, "out"), data(db, "jobs")) == ([1], ["a"])
    with pytest.raises(te.Conflict):
        attempt(db, ("out", 1, 1), ("out", 1, 2))


def test_a_job_that_a_transaction_acked_is_done(db: te.Database) -> None:
    jobs = db.queue("jobs")
    jobs.append(["a", "b"])
    for job in jobs.claim("w", max=2):
        with job, db.transaction() as tx:
            tx.append("done", job.data)
            tx.ack(job)
    assert data(db, "done") == ["a", "b"]
    assert data(db, "jobs") == []


def test_writers_and_keys(data_dir: Path) -> None:
    with te.open(data_dir) as db:
        for epoch, want in [(None, 1), (None, 2), (7, 7)]:
            done = attempt(db, ("t", want, None), writer="w", epoch=epoch)
            assert (done.epoch, done.deduped) == (want, False)
        first = attempt(db, ("t", "k", None), idempotency_key="k")
    with te.open(data_dir) as db:
        again = attempt(db, ("t", 7, None), writer="w", epoch=7)
        assert again == te.Committed(7, True, {"t": (3, 3)})
        with pytest.raises(te.Conflict) as e:
            attempt(db, ("t", 6, None), writer="w", epoch=6)
        assert (e.value.code, e.value.detail["last_epoch"]) == ("stale_epoch", 7)
        assert attempt(db, ("t", "k", None), idempotency_key="k") == te.Committed(
            0, True, first.topics
        )
        with pytest.raises(te.Conflict):
            attempt(db, ("t", "other", None), idempotency_key="k")
        with pytest.raises(te.InvalidRequest):
            attempt(db, writer="w", idempotency_key="k")
        assert data(db, "t") == [1, 2, 7, "k"]


def test_stages_outlive_the_process(data_dir: Path) -> None:
    rows = {"appends": [{"topic": "t", "records": [{"data": 1, "tag": "tag"}] * 2}]}
    publish: dict[str, Any] = {"epoch": 1, "stages": [{"id": "a", "parts": 1, "records": 2}]}
    with te.open(data_dir) as db:
        staged = request(db, "txn_stage", "w/a", rows, "part=0")
        size = staged["bytes"]
        assert (staged["staged"], staged["deduped"]) == (2, False)
        again = request(db, "txn_stage", "w/a", rows, "part=0")
        assert (again["staged"], again["bytes"], again["deduped"]) == (2, size, True)
        assert list(db.topics()) == []
        wrong = {"appends": [{"topic": "t", "records": [{"dat": 1}]}]}
        with pytest.raises(te.InvalidRequest, match=r"records\[0\]"):
            request(db, "txn_stage", "w/a", wrong, "part=1")
    with te.open(data_dir) as db:
        state = request(db, "txn_writer", "w")
        assert state["last_epoch"] is None
        assert state["staged"] == [{"id": "a", "parts": 1, "records": 2, "bytes": size}]
        short = {"epoch": 1, "stages": [{"id": "a", "parts": 2}]}
        with pytest.raises(te.Conflict) as e:
            request(db, "txn_commit", "w", short)
        assert e.value.code == "txn_incomplete"
        done = request(db, "txn_commit", "w", publish | {"expect_heads": {"t": 0}})
        assert (done["epoch"], done["deduped"], list(done["topics"])) == (1, False, ["t"])
        assert request(db, "txn_commit", "w", publish)["deduped"]
        assert not request(db, "txn_abort", "w/a")["aborted"]
        assert data(db, "t") == [1, 1]
        with pytest.raises(te.NotFound):
            request(db, "txn_writer", "nobody")


def test_staged_bytes_are_bounded(data_dir: Path) -> None:
    with te.open(data_dir, txn_bytes=16384) as db:
        rows = {"appends": [{"topic": "t", "records": [{"data": "x" * 6000}]}]}
        request(db, "txn_stage", "w/a", rows, "part=0")
        with pytest.raises(te.Throttled):
            request(db, "txn_stage", "w/b", rows, "part=0")
        assert request(db, "txn_abort", "w/a")["aborted"]
        request(db, "txn_stage", "w/b", rows, "part=0")


def test_a_transaction_that_ended_refuses_everything(tmp_path: Path) -> None:
    with te.open(tmp_path / "d") as db:
        for fails in (False, True):
            tx = db.transaction()
            with contextlib.suppress(KeyError), tx:
                tx.append("t", 1)
                if fails:
                    raise KeyError
            calls = (
                lambda tx=tx: tx.append("t", 2),
                lambda tx=tx: tx.commit(db.topic("t").consumer("c"), 1),
                lambda tx=tx: tx.ack(),
                tx.__enter__,
            )
            for call in calls:
                with pytest.raises(te.InvalidRequest, match="has ended"):
                    call()
        assert db.topic("t").state().head_seq == 1
