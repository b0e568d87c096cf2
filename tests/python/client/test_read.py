"""Reading in process: strictly rising seqs, and every missing one explained."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

import topics_engine as te
from support.processes import until_all_wait


def seqs(items: te.Read) -> list[int]:
    return [item.seq for item in items if isinstance(item, te.Record)]


@pytest.fixture
def topic(db: te.Database) -> te.Topic:
    t = db.topic("t")
    t.append([te.NewRecord({"i": i}, tag=f"k:{i % 3}", origin=f"n{i % 2}") for i in range(1, 3001)])
    return t


def test_a_read_ends_at_the_head_of_its_beginning(topic: te.Topic) -> None:
    read = topic.read(after=0)
    got = [next(read)]
    topic.append("later")
    got += read
    assert [r.seq for r in got if isinstance(r, te.Record)] == list(range(1, 3001))
    assert read.cursor == 3000
    assert seqs(topic.read(after=read.cursor)) == [3001]


def test_bounds_are_exclusive_and_inclusive(topic: te.Topic) -> None:
    assert seqs(topic.read(after=10, to_seq=13)) == [11, 12, 13]
    assert seqs(topic.read(after=2990, limit=4)) == [2991, 2992, 2993, 2994]
    assert seqs(topic.read(te.EARLIEST, limit=2)) == [1, 2]
    assert seqs(topic.read(te.LATEST)) == []
    assert topic.read(te.LATEST).cursor == 3000
    assert seqs(topic.read(after=3000)) == []


def test_the_cursor_follows_what_was_taken(topic: te.Topic) -> None:
    read = topic.read(after=0)
    assert read.cursor == 0
    for expected in range(1, 1500):
        next(read)
        assert read.cursor == expected
    assert seqs(topic.read(after=read.cursor, limit=1)) == [1500]


def test_a_cursor_before_anything_was_taken(topic: te.Topic) -> None:
    topic.delete(before=11)
    assert topic.read().cursor <= 10
    assert seqs(topic.read(after=topic.read().cursor, limit=1)) == [11]


def test_filters_advance_the_cursor(topic: te.Topic) -> None:
    assert seqs(topic.read(after=0, tag="k:1", to_seq=10)) == [1, 4, 7, 10]
    assert seqs(topic.read(after=0, tag="k:*", to_seq=4)) == [1, 2, 3, 4]
    read = topic.read(after=0, exclude_nodes=["n0", "n1"])
    assert list(read) == []
    assert read.cursor == 3000
    assert seqs(topic.read(after=0, exclude_nodes="n0", to_seq=4)) == [1, 3]


def test_batches(topic: te.Topic) -> None:
    batches = list(topic.read(after=0).batches())
    assert len(batches) > 1
    assert [r.seq for b in batches for r in b if isinstance(r, te.Record)] == list(range(1, 3001))


def test_tail_and_seek(topic: te.Topic) -> None:
    assert [r.seq for r in topic.tail(3) if isinstance(r, te.Record)] == [2998, 2999, 3000]
    assert len(topic.tail(5000)) == 3000
    (first,) = topic.read(after=0, limit=1)
    assert isinstance(first, te.Record)
    assert topic.seek(0) == 0
    assert topic.seek(first.ts) == 0
    assert topic.seek(first.ts + 10**9) == 3000


def test_deletes_are_silent(topic: te.Topic) -> None:
    gone = topic.delete(tag="k:1")
    assert (gone.deleted, gone.count, gone.head_seq) == (1000, 2000, 3000)
    read = topic.read(after=0, to_seq=6)
    assert seqs(read) == [2, 3, 5, 6]
    assert topic.delete(before=1001).deleted == 666
    items = list(topic.read(after=0))
    assert all(isinstance(item, te.Record) for item in items)
    assert topic.state().evict_floor == 1
    with pytest.raises(te.InvalidRequest):
        topic.delete()


def test_eviction_is_a_gap(db: te.Database) -> None:
    t = db.topic("capped", cap_records=3)
    for i in range(10):
        t.append(i)
    first, *rest = t.read(after=0)
    assert isinstance(first, te.Gap)
    assert (first.first, first.last, first.reason, first.topic) == (1, 7, "cap", "capped")
    assert [r.data for r in rest if isinstance(r, te.Record)] == [7, 8, 9]
    match first:
        case te.Gap(first=a, last=b, reason=why):
            assert (a, b, why) == (1, 7, "cap")
    assert [type(item) for item in t.read()] == [te.Record] * 3


def test_what_is_done_about_gaps(db: te.Database) -> None:
    t = db.topic("capped", cap_records=3)
    for i in range(10):
        t.append(i)
    skipping = t.read(after=0, gaps="skip")
    assert seqs(skipping) == [8, 9, 10]
    assert [(g.first, g.last) for g in skipping.gaps] == [(1, 7)]
    raising = t.read(after=0, gaps="raise")
    with pytest.raises(te.DataLoss) as caught:
        next(raising)
    assert caught.value.gap == raising.gaps[0]
    assert raising.cursor == 0, "a stored cursor does not pass a loss that was not handled"
    assert seqs(raising) == [8, 9, 10]
    with pytest.raises(te.InvalidRequest):
        t.read(gaps="ignore")  # type: ignore[arg-type]


def test_records_match_and_are_values(topic: te.Topic) -> None:
    (item,) = topic.read(after=6, limit=1)
    match item:
        case te.Record(seq=s, data={"i": i}, tag=tag):
            assert (s, i, tag) == (7, 7, "k:1")
        case _:
            pytest.fail("a record matches by its fields")
    (again,) = topic.read(after=6, limit=1)
    assert item == again
    assert hash(item) == hash(again)
    assert "seq=7" in repr(item)
    assert not hasattr(item, "__dict__")


def test_raw_outlives_everything(data_dir: Path) -> None:
    db = te.open(data_dir)
    t = db.topic("t", cap_records=1)
    t.append({"a": 1})
    (record,) = t.read()
    assert isinstance(record, te.Record)
    raw = record.raw
    t.append(2)
    t.drop()
    db.close()
    del db, t, record
    gc.collect()
    assert raw.readonly
    assert raw.tobytes() == b'{"a":1}'


def test_what_is_not_there(db: te.Database) -> None:
    t = db.topic("t")
    with pytest.raises(te.NotFound) as caught:
        list(t.read())
    assert caught.value.detail == {"topic": "t"}
    t.create()
    assert list(t.read()) == []
    assert t.tail(5) == []
    assert t.drop() is True
    assert t.drop() is False


def test_an_iterator_is_closed_from_another_thread(topic: te.Topic) -> None:
    read = topic.read(after=0)
    next(read)
    thread = threading.Thread(target=read.close, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert list(read) == []
    with topic.read() as other:
        next(other)
    assert list(other) == []


def test_waiting(db: te.Database) -> None:
    t = db.topic("t")
    t.append(1)
    assert t.wait(0) is True
    assert t.wait(1, timeout=0) is False
    assert t.wait(1, timeout=0.01) is False
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(t.wait(1)), daemon=True)
    thread.start()
    until_all_wait()
    t.append(2)
    thread.join(60)
    assert woken == [True]


def test_state(topic: te.Topic, db: te.Database) -> None:
    state = topic.state()
    assert (state.topic, state.type, state.head_seq, state.next_seq) == ("t", "log", 3000, 3001)
    assert (state.count, state.earliest_seq, state.gaps) == (3000, 1, ())
    assert state.last_write_time is not None
    assert abs(state.last_write_time.timestamp() - time.time()) < 3600  # clock: an hour
    db.topic("u").create()
    db.topic("t2").create()
    assert [t.topic for t in db.topics()] == ["t", "t2", "u"]
    assert [t.topic for t in db.topics("t")] == ["t", "t2"]


def test_handles_describe_themselves(topic: te.Topic, db: te.Database) -> None:
    assert "3000 records" in repr(topic)
    assert "not created yet" in repr(db.topic("none"))
    assert "1 topics, 3000 records" in repr(db)
    topic.append("<script>")
    html = topic._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<td>t</td>" in db._repr_html_()
    db.close()
    assert "closed" in repr(topic)
    assert "closed" in repr(db)
