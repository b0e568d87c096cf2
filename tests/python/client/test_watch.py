"""Following topics in process."""

from __future__ import annotations

import gc
import signal
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import topics_engine as te
from support.processes import LIMIT, child, until_all_wait
from support.waiting import until


def take(watch: te.Watch, n: int) -> list[object]:
    out: list[object] = []
    while len(out) < n:
        item = watch.next(wait=60)
        assert item is not None, out
        out.append(item)
    return out


def datas(items: list[object]) -> list[object]:
    return [i.data for i in items if isinstance(i, te.Record)]


def test_from_a_cursor_then_live(db: te.Database) -> None:
    orders = db.topic("orders")
    orders.append([1, 2, 3])
    with db.watch({"orders": 1}, events=True) as watch:
        items = take(watch, 3)
        assert datas(items) == [2, 3]
        assert items[2] == te.CaughtUp("orders", 3)
        orders.append({"id": 4}, tag="t", origin="n", meta={"k": "v"})
        (record,) = take(watch, 1)
        assert isinstance(record, te.Record)
        assert (record.topic, record.seq, record.tag, record.origin) == ("orders", 4, "t", "n")
        assert record.meta == {"k": "v"}
        assert record.data == {"id": 4}
        assert watch.next(wait=0.01) is None


def test_starts(db: te.Database) -> None:
    db.topic("a").append([1, 2])
    with db.watch("a") as tail, db.watch({"a": te.EARLIEST}) as all_of_it:
        db.topic("a").append(3)
        assert datas(take(tail, 1)) == [3]
        assert datas(take(all_of_it, 3)) == [1, 2, 3]
    with db.watch({"a": te.LATEST}) as watch:
        assert watch.next(wait=0) is None
        assert watch.cursor == {"a": 3}
    with pytest.raises(te.NotFound):
        db.watch("none")
    with db.watch("none", lenient=True) as watch:
        db.topic("none").append("x")
        assert datas(take(watch, 1)) == ["x"]
    with pytest.raises(te.InvalidRequest):
        db.watch([])
    with pytest.raises(te.InvalidRequest):
        db.watch("a", gaps="no")  # type: ignore[arg-type]


def test_many_topics_and_patterns(db: te.Database) -> None:
    db.topic("a").append(1)
    with db.watch({"a": 0, "p.*": te.LATEST}) as watch:
        db.topic("p.new").append([1, 2])
        db.topic("q").append(1)
        got = {(i.topic, i.seq) for i in take(watch, 3) if isinstance(i, te.Record)}
        assert got == {("a", 1), ("p.new", 1), ("p.new", 2)}
        assert watch.cursor == {"a": 1, "p.new": 2}


def test_the_cursor_is_exact_within_a_batch(db: te.Database) -> None:
    db.topic("a").append([1, 2, 3, 4])
    with db.watch({"a": 0}) as watch:
        assert watch.cursor == {"a": 0}
        for seq in (1, 2):
            assert isinstance(next(watch), te.Record)
            assert watch.cursor == {"a": seq}
        stored = watch.cursor
    assert watch.cursor == stored
    with db.watch(stored) as watch:
        assert datas(take(watch, 2)) == [3, 4]
        assert watch.cursor == {"a": 4}


def test_filters(db: te.Database) -> None:
    topic = db.topic("a")
    topic.append(
        [te.NewRecord(1, tag="x"), te.NewRecord(2, tag="y"), te.NewRecord(3, tag="x", origin="me")]
    )
    with db.watch({"a": 0}, tag="x", exclude_nodes="me") as watch:
        assert datas(take(watch, 1)) == [1]
        assert watch.next(wait=0.01) is None
        assert watch.cursor == {"a": 3}


@pytest.mark.parametrize("gaps", ["yield", "raise", "skip"])
def test_gaps(db: te.Database, gaps: str) -> None:
    db.topic("a", cap_records=2).append(1)
    for i in range(2, 6):
        db.topic("a").append(i)
    with db.watch({"a": 0}, gaps=gaps) as watch:  # type: ignore[arg-type]
        if gaps == "raise":
            with pytest.raises(te.DataLoss) as e:
                next(watch)
            assert e.value.detail["gap_to"] == 3
            assert watch.cursor == {"a": 0}
        if gaps == "yield":
            assert next(watch) == te.Gap("a", 1, 3, "from_seq_too_old", 3)
        assert datas(take(watch, 2)) == [4, 5]
        assert [g.last for g in watch.gaps] == [3]


def test_deleted_and_made_anew(db: te.Database) -> None:
    db.topic("a").append(1)
    with db.watch("a", events=True) as watch:
        assert take(watch, 1) == [te.CaughtUp("a", 1)]
        db.topic("a").drop()
        assert take(watch, 1) == [te.TopicDeleted("a")]
        db.topic("a").append("new")
        (item,) = take(watch, 1)
        if item == te.CaughtUp("a", 0):
            # The topic was there before its first record.
            (item,) = take(watch, 1)
        assert datas([item]) == ["new"]


def test_batches(db: te.Database) -> None:
    db.topic("a").append([1, 2, 3])
    with db.watch({"a": 0}) as watch:
        batches = watch.batches(wait=0.01)
        assert datas(list(next(batches))) == [1, 2, 3]
        seen = [next(batches) for _ in range(3)]
        assert [] in seen
        assert all(not b for b in seen)


def test_strong(db: te.Database) -> None:
    topic = db.topic("a", durability="disk")
    topic.append(1)
    with db.watch("a", strong=True) as watch:
        topic.append(2)
        assert datas(take(watch, 1)) == [2]


def test_close_from_another_thread_ends_the_iteration(db: te.Database) -> None:
    db.topic("a").append(1)
    watch = db.watch("a")
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(watch), daemon=True)
    thread.start()
    db.topic("a").append(2)
    until(lambda: got, 60)
    watch.close()
    watch.close()
    thread.join(60)
    assert not thread.is_alive()
    assert datas(got) == [2]
    assert list(watch) == []


def test_closing_the_database_wakes_a_watcher_with_closed(data_dir: Path) -> None:
    with te.open(data_dir) as db:
        db.topic("a").append(1)
        watch = db.watch("a")
        failed: list[BaseException] = []

        def follow() -> None:
            try:
                list(watch)
            except te.Closed as e:
                failed.append(e)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        until_all_wait()
    thread.join(60)
    assert not thread.is_alive()
    assert len(failed) == 1
    with te.open(data_dir) as db:
        assert db.topic("a").state().count == 1


def test_a_writer_does_not_wait_for_a_watcher_that_sleeps(db: te.Database) -> None:
    topic = db.topic("a")
    topic.append(b"0")
    with db.watch("a") as watch:
        assert watch.next(wait=0) is None
        # More than the queue holds.
        for i in range(3000):
            topic.append(str(i).encode())
        assert [int(d) for d in datas(take(watch, 3000))] == list(range(3000))  # type: ignore[call-overload]


def test_a_watch_that_is_dropped_leaves_nothing(db: te.Database) -> None:
    db.topic("a").append(1)
    watch = db.watch("a")
    assert watch.next(wait=0) is None
    assert db.metrics()["watch_streams"] == 1
    del watch
    gc.collect()
    assert db.metrics()["watch_streams"] == 0


def test_ctrl_c_is_heard(data_dir: Path) -> None:
    program = textwrap.dedent(f"""
        import signal, topics_engine as te
        # A process that was started in the background inherits it as ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with te.open({str(data_dir)!r}) as db:
            db.topic("a").append(1)
            watch = db.watch("a")
            try:
                print("waiting", flush=True)
                next(watch)
            except KeyboardInterrupt:
                print("heard", flush=True)
    """)
    with child([sys.executable, "-c", program]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        until_all_wait(process.pid)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT)
        assert (out, process.returncode) == ("heard\n", 0)
