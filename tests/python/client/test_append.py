"""Writing in process: what is stored is what was given, and an ack says what happened."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import topics_engine as te


def data_of(topic: te.Topic) -> list[Any]:
    return [item.data for item in topic.read(after=0) if isinstance(item, te.Record)]


class Point(NamedTuple):
    x: int
    y: int


def test_a_list_is_a_batch_and_anything_else_one_record(db: te.Database) -> None:
    t = db.topic("t")
    first = t.append([{"id": 1}, {"id": 2}])
    assert (first.first_seq, first.last_seq, first.count, first.created) == (1, 2, 2, True)
    second = t.append({"id": 3})
    assert (second.first_seq, second.last_seq, second.head_seq) == (3, 3, 3)
    assert (second.created, second.deduped, second.durability) == (False, False, "disk")
    assert second.topic_id == first.topic_id
    t.append((4, 5))
    t.append(Point(8, 9))
    t.append(te.NewRecord([6, 7]))
    t.append([(1, 2), Point(3, 4)])
    want = [{"id": 1}, {"id": 2}, {"id": 3}, [4, 5], [8, 9], [6, 7], [1, 2], [3, 4]]
    assert data_of(t) == want


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1.5,
        10**40,
        "",
        "é😀\u2028",
        '\x00\x1f"\\',
        "\ud800 half a pair",
        {},
        {"a": {"b": [1, [2, [3]]]}},
        b"",
        b"\x00\xff raw",
    ],
    ids=repr,
)
def test_every_value_comes_back(db: te.Database, value: Any) -> None:
    t = db.topic("t")
    t.append(value)
    (record,) = t.read()
    assert isinstance(record, te.Record)
    assert record.data == value
    assert type(record.data) is type(value)
    assert record.binary is isinstance(value, bytes)


def test_bytes_like_payloads_are_raw(db: te.Database) -> None:
    t = db.topic("t")
    t.append([bytearray(b"a"), memoryview(b"b"), b"c"])
    assert data_of(t) == [b"a", b"b", b"c"]


def test_options_of_records(db: te.Database) -> None:
    t = db.topic("t")
    t.append(
        [1, te.NewRecord(2, tag="own", origin="n2", meta={"k": "own"})],
        tag="common",
        origin="n1",
        meta={"k": "common"},
    )
    one, two = t.read()
    assert isinstance(one, te.Record)
    assert isinstance(two, te.Record)
    assert (one.tag, one.origin, one.meta) == ("common", "n1", {"k": "common"})
    assert (two.tag, two.origin, two.meta) == ("own", "n2", {"k": "own"})
    t.append(3)
    *_, three = t.read()
    assert isinstance(three, te.Record)
    assert (three.tag, three.origin, three.meta) == (None, None, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, {1, 2}, object(), {(1, 2): 3}])
def test_what_is_no_json_names_its_index_and_refuses_the_batch(db: te.Database, bad: Any) -> None:
    t = db.topic("t")
    with pytest.raises(te.InvalidRequest, match=r"records\[1\]\.data") as caught:
        t.append([1, bad])
    assert caught.value.detail == {"field": "data", "index": 1}
    with pytest.raises(te.NotFound):
        t.state()


def test_nesting_is_bounded(db: te.Database) -> None:
    deep: Any = 1
    for _ in range(125):
        deep = [deep]
    t = db.topic("t")
    t.append(te.NewRecord(deep))
    with pytest.raises(te.InvalidRequest, match="128 levels"):
        t.append(te.NewRecord([deep]))


@pytest.mark.parametrize(
    ("meta", "said"),
    [({"$x": "v"}, "reserved"), ({"_topics_x": "v"}, "reserved"), ({"a": 1}, "must be text")],
)
def test_metadata_rules(db: te.Database, meta: Any, said: str) -> None:
    with pytest.raises(te.InvalidRequest, match=said):
        db.topic("t").append(1, meta=meta)


def test_a_key_makes_a_repeat_return_the_first_answer(db: te.Database) -> None:
    t = db.topic("t")
    first = t.append([1, 2], idempotency_key="k")
    again = t.append([1, 2], idempotency_key="k")
    assert (again.first_seq, again.last_seq, again.deduped) == (1, 2, True)
    assert not first.deduped
    with pytest.raises(te.Conflict) as caught:
        t.append([3], idempotency_key="k")
    assert caught.value.code == "idempotency_mismatch"
    assert data_of(t) == [1, 2]


def test_a_conditional_append(db: te.Database) -> None:
    t = db.topic("t")
    t.append(1, expect_head=0)
    with pytest.raises(te.Conflict) as caught:
        t.append(2, expect_head=0)
    assert caught.value.code == "head_mismatch"
    assert caught.value.detail["head_seq"] == 1
    assert not caught.value.retryable
    assert data_of(t) == [1]


def test_append_batch_moves_bytes(db: te.Database) -> None:
    t = db.topic("t")
    ack = t.append_batch([b"a", b"", b"{not json"], tag="x", origin="n")
    assert (ack.first_seq, ack.last_seq) == (1, 3)
    records = list(t.read())
    assert [r.data for r in records if isinstance(r, te.Record)] == [b"a", b"", b"{not json"]
    assert {(r.tag, r.origin) for r in records if isinstance(r, te.Record)} == {("x", "n")}
    with pytest.raises(te.InvalidRequest, match=r"records\[1\] must be bytes, not 'b'"):
        t.append_batch([b"a", "b"])  # type: ignore[list-item]
    with pytest.raises(te.InvalidRequest):
        t.append_batch([])


def test_an_empty_batch_is_refused(db: te.Database) -> None:
    with pytest.raises(te.InvalidRequest):
        db.topic("t").append([])


def test_creation(db: te.Database) -> None:
    with pytest.raises(te.NotFound) as caught:
        db.topic("t").append(1, create=False)
    assert caught.value.code == "topic_not_found"
    state = db.topic("t", durability="fsync").create(cap_records=5)
    assert (state.config["durability"], state.config["cap_records"]) == ("fsync", 5)
    assert db.topic("t", durability="fsync").append(1).durability == "fsync"
    with pytest.raises(te.Conflict) as conflict:
        db.topic("t", durability="memory").append(1)
    assert conflict.value.code == "topic_exists_incompatible"
    assert db.topic("t").configure(cap_records=0).config["durability"] == "fsync"
    with pytest.raises(te.InvalidRequest, match="cap_records must be an integer"):
        db.topic("t").create(cap_records="many")


def test_no_creation_by_writes_when_that_is_off(data_dir: Path) -> None:
    with te.open(data_dir, auto_create=["a.*"]) as db:
        db.topic("a.1").append(1)
        with pytest.raises(te.NotFound):
            db.topic("b").append(1)
        db.topic("b").append(1, create=True)


@pytest.mark.parametrize("name", ["", ".a", "a b", "a/b", "ä", "x" * 256])
def test_names(db: te.Database, name: str) -> None:
    with pytest.raises(te.InvalidRequest):
        db.topic(name).append(1)


def test_a_full_topic_refuses(db: te.Database) -> None:
    t = db.topic("t", cap_records=2, discard="reject")
    t.append([1, 2])
    with pytest.raises(te.Full) as caught:
        t.append(3)
    assert caught.value.retryable
    assert data_of(t) == [1, 2]


def test_limits_of_calls_in_process(data_dir: Path) -> None:
    """Each at its value and one beyond; those of requests over HTTP are others."""
    limits = {
        "max_embedded_batch_records": 3,
        "max_embedded_batch_bytes": 200,
        "max_embedded_record_bytes": 100,
        "max_batch_records": 1,
        "max_record_bytes": 1,
    }
    with te.open(data_dir, **limits) as db:
        t = db.topic("t")
        for fits, over, code in (
            ([b"x"] * 3, [b"x"] * 4, "batch_too_large"),
            ([b"x" * 100], [b"x" * 101], "record_too_large"),
            ([b"x" * 67, b"x" * 67, b"x" * 66], [b"x" * 67] * 3, "batch_too_large"),
        ):
            assert t.append_batch(fits).count == t.append(fits).count == len(fits)
            for write in (t.append_batch, t.append):
                with pytest.raises(te.InvalidRequest) as caught:
                    write(over)
                assert caught.value.code == code
                assert caught.value.detail["max"] in limits.values()
        assert t.state().count == 2 * (3 + 1 + 3)


@pytest.mark.parametrize("most", [0, 1 << 40])
def test_a_record_is_never_larger_than_a_frame_can_hold(data_dir: Path, most: int) -> None:
    with te.open(
        data_dir, max_embedded_record_bytes=most, max_embedded_batch_bytes=most,
        max_embedded_batch_records=most, max_tag_bytes=most, max_node_bytes=most,
        max_meta_bytes=most,
    ) as db:  # fmt: skip
        t = db.topic("t")
        part = "x" * 65_535
        t.append(b"x" * (31 << 20), tag=part, origin=part, meta={"k": "v" * 500_000})
        for field in ("tag", "origin"):
            with pytest.raises(te.InvalidRequest) as caught:
                t.append(1, **{field: part + "x"})
            assert caught.value.code == "record_too_large"
        with pytest.raises(te.InvalidRequest) as caught:
            t.append_batch([b"x" * (32 << 20)])
        assert caught.value.code == "record_too_large"
        (record,) = t.read()
        assert isinstance(record, te.Record)
        assert (len(record.data), record.tag, record.origin) == (31 << 20, part, part)


def test_acks_are_values() -> None:
    ack = te.Ack(1, 2, 3, 4, 2, True, False, "disk")
    with pytest.raises(dataclasses.FrozenInstanceError):
        ack.count = 3  # type: ignore[misc]
    assert ack == dataclasses.replace(ack)
    assert not hasattr(ack, "__dict__")
