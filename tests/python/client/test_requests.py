"""Verbs of this process that are requests: their handles, arguments and bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.waiting import DEADLINE, until


def test_a_handle_is_of_the_topic_that_it_was_opened_for(db: te.Database) -> None:
    topic = db.topic("t")
    topic.append([1, 2])
    old = topic.consumer("c", auto_commit=True)
    topic.drop()
    topic.append([3, 4, 5])
    new = topic.consumer("c")
    calls: list[Callable[[], Any]] = [old.read, lambda: old.commit(2), lambda: old.seek(te.LATEST)]
    for call in calls * 2:
        with pytest.raises(te.NotFound):
            call()
    assert new.cursor == 0
    assert [r.data for r in new.read() if isinstance(r, te.Record)] == [3, 4, 5]


def test_a_handle_outlives_its_consumer(db: te.Database) -> None:
    topic = db.topic("t")
    topic.append([1, 2])
    c = topic.consumer("c", auto_commit=True)
    assert topic.drop_consumer("c")
    with pytest.raises(te.NotFound):
        c.read()
    topic.consumer("c")
    assert len(c.read(max_records=1)) == 1
    assert len(c.read(max_records=1)) == 1
    # It commits by itself, still; the frame is written a little later.
    until(lambda: c.cursor == 1, DEADLINE)


def test_arguments_of_another_type(db: te.Database) -> None:
    topic: Any = db.topic("t")
    topic.append(1)
    anything: Any = db
    calls: list[Callable[[], Any]] = [
        lambda: list(anything.topics(5)),
        lambda: list(anything.queues(5)),
        lambda: anything.routers(5),
        lambda: topic.drop(if_empty="yes"),
        lambda: topic.trim("1"),
        lambda: topic.trim(True),
    ]
    for call in calls:
        with pytest.raises(te.InvalidRequest):
            call()
    assert topic.state().count == 1


def test_the_bounds_are_those_of_the_engine(tmp_path: Path) -> None:
    """A server has further ones, for its clients."""
    with te.open(tmp_path / "data", max_tag_bytes=1000, max_node_bytes=1000) as db:
        tag, node = "t" * 1000, "n" * 1000
        db.topic("t").append(1, tag=tag, origin=node)
        with db.transaction() as tx:
            tx.append("t", [2] * 20_000, tag=tag, origin=node)
        assert db.topic("t").state().head_seq == 20_001
        with pytest.raises(te.InvalidRequest, match="tag"), db.transaction() as tx:
            tx.append("t", 3, tag=tag + "t")
        jobs = db.queue("jobs")
        jobs.append([1] * 1500)
        assert len(jobs.peek(1500)) == 1500
