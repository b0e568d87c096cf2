"""Routers in process."""

from __future__ import annotations

from pathlib import Path

import pytest

import topics_engine as te
from support.waiting import until


def follow(db: te.Database, topic: str, n: int) -> list[object]:
    with db.watch({topic: 0}) as watch:
        items = [watch.next(wait=30) for _ in range(n)]
    return [i.data for i in items if isinstance(i, te.Record)]


def test_copies_and_goes_on_after_a_restart(data_dir: Path) -> None:
    with te.open(data_dir) as db:
        orders = db.topic("orders")
        orders.append("before")
        router = db.router("orders.audit", source="orders", dest="audit")
        orders.append([1, 2], tag="eu", origin="n", meta={"k": "v"})
        assert follow(db, "audit", 2) == [1, 2]
        (first, _) = db.topic("audit").read()
        assert isinstance(first, te.Record)
        assert (first.seq, first.tag, first.origin, first.meta) == (1, "eu", "n", {"k": "v"})
        # A copy is there before its router is known to have made it.
        until(lambda: router.state().lag == 0)
        info = router.state()
        assert (info.source, info.dest, info.guarantee) == ("orders", "audit", "at_least_once")
        assert (info.forwarded_total, info.lag, info.stopped_by) == (2, 0, None)
        orders.append(3)
    with te.open(data_dir) as db:
        db.topic("orders").append(4)
        assert follow(db, "audit", 4) == [1, 2, 3, 4]
        assert [r.router for r in db.routers()] == ["orders.audit"]
        assert db.router("orders.audit").drop()
        assert not db.router("orders.audit").drop()
        assert db.routers() == []


def test_options(db: te.Database) -> None:
    db.topic("s").append(0)
    router = db.router("r", "s", "d", tag="eu:*", preserve_tag=False, guarantee="exactly_once")
    db.topic("s").append(
        [te.NewRecord(1, tag="eu:1"), te.NewRecord(2, tag="us:1"), te.NewRecord(3, tag="eu:2")]
    )
    assert follow(db, "d", 2) == [1, 3]
    records = [r for r in db.topic("d").read() if isinstance(r, te.Record)]
    assert [r.tag for r in records] == [None, None]
    assert [(r.meta or {})["_topics_router"].split(":")[-1] for r in records] == ["2", "4"]
    assert router.state().tag == "eu:*"


def test_refusals(db: te.Database) -> None:
    db.topic("a").append(0)
    db.router("ab", "a", "b")
    with pytest.raises(te.Conflict) as cycle:
        db.router("ba", "b", "a")
    assert cycle.value.code == "router_cycle"
    assert cycle.value.detail["cycle"] == ["b", "a", "b"]
    db.topic("x").append(0)
    with pytest.raises(te.Conflict) as fan_in:
        db.router("xb", "x", "b")
    assert fan_in.value.detail["reason"] == "router_dest_fan_in"
    assert fan_in.value.detail["existing_source"] == "a"
    with pytest.raises(te.NotFound):
        db.router("none").state()
    with pytest.raises(te.NotFound):
        db.router("n", "none", "y", create_dest=False)
    with pytest.raises(te.InvalidRequest):
        db.router("half", "a")
    with pytest.raises(te.InvalidRequest):
        db.router("r", "a", "c", guarantee="twice")  # type: ignore[arg-type]


def test_deleting_a_topic_deletes_its_routers(db: te.Database) -> None:
    db.topic("a").append(0)
    db.router("ab", "a", "b")
    db.topic("b").drop()
    assert db.routers() == []
