"""Topics: writes, conditions, idempotency, deletes, expiry."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import topics_engine as te

from .adapter import Open, all_of, datas, eventually, plain


async def test_what_is_appended_is_read_back(db: Any) -> None:
    orders = db.topic("orders", durability="fsync")
    ack = await orders.append([{"id": 1}, {"id": 2}], tag="eu:7", meta={"k": "v"}, origin="n")
    assert ack == te.Ack(ack.topic_id, 1, 2, 2, 2, True, False, "fsync")
    ack = await orders.append({"id": 3})
    assert (ack.first_seq, ack.last_seq, ack.created) == (3, 3, False)
    first, second, third = await all_of(orders.read(after=0))
    assert (first.topic, first.seq, first.data) == ("orders", 1, {"id": 1})
    assert (second.tag, second.origin, second.meta) == ("eu:7", "n", {"k": "v"})
    assert (third.tag, third.origin, third.meta, third.binary) == (None, None, None, False)
    assert bytes(third.raw) == b'{"id":3}'


async def test_bytes_lists_and_options_of_one_record(db: Any) -> None:
    t = db.topic("t")
    await t.append(b"\x00raw")
    await t.append(te.NewRecord([1, 2], tag="a"))
    await t.append([te.NewRecord("x", origin="me"), "y"], tag="b", origin="all")
    await t.append_batch([b"1", b"2"], tag="c")
    read = await all_of(t.read())
    assert [r.data for r in read] == [b"\x00raw", [1, 2], "x", "y", b"1", b"2"]
    assert [r.tag for r in read] == [None, "a", "b", "b", "c", "c"]
    assert [r.origin for r in read] == [None, None, "me", "all", None, None]
    assert [r.binary for r in read] == [True, False, False, False, True, True]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_every_class(db: Any, durability: str) -> None:
    t = db.topic("t", durability=durability)
    ack = await t.append([1, 2])
    assert ack.durability == durability
    assert (await t.append(3, sync=True)).last_seq == 3
    assert (await t.append_batch([b"4"])).last_seq == 4
    await t.sync()
    assert datas(await t.tail(4)) == [1, 2, 3, b"4"]


async def test_a_key_makes_a_repeat_the_same_write(db: Any) -> None:
    t = db.topic("t")
    first = await t.append([1, 2], idempotency_key="batch-7")
    again = await t.append([1, 2], idempotency_key="batch-7")
    assert (again.first_seq, again.last_seq, again.deduped) == (1, 2, True)
    assert not first.deduped
    raw = await t.append_batch([b"r"], idempotency_key="raw")
    assert (await t.append_batch([b"r"], idempotency_key="raw")).first_seq == raw.first_seq
    with pytest.raises(te.Conflict) as caught:
        await t.append([3], idempotency_key="batch-7")
    assert caught.value.code == "idempotency_mismatch"
    assert (await t.state()).head_seq == 3


async def test_a_key_holds_over_a_restart(open_db: Open) -> None:
    async with open_db() as db:
        await db.topic("t").append(1, idempotency_key="k")
    async with open_db() as db:
        assert (await db.topic("t").append(1, idempotency_key="k")).deduped


async def test_a_conditional_append(db: Any) -> None:
    t = db.topic("t")
    await t.append(1, expect_head=0)
    with pytest.raises(te.Conflict) as caught:
        await t.append(2, expect_head=0)
    assert (caught.value.code, caught.value.retryable) == ("head_mismatch", False)
    assert (await t.append(2, expect_head=1)).first_seq == 2
    assert (await t.state()).head_seq == 2


async def test_create_state_and_update(db: Any) -> None:
    t = db.topic("t", ttl=60)
    state = await t.create(cap_records=5)
    assert (state.topic, state.type, state.head_seq, state.count) == ("t", "log", 0, 0)
    assert (state.config["ttl"], state.config["cap_records"]) == (60.0, 5)
    state = await t.configure(cap_records=6)
    assert state.config["cap_records"] == 6
    await t.append([1, 2])
    state = await t.state()
    assert (state.head_seq, state.earliest_seq, state.next_seq, state.count) == (2, 1, 3, 2)
    assert (state.gaps, state.queue) == ((), None)
    assert abs(datetime.now(UTC) - state.last_write_time) < timedelta(hours=1)


async def test_a_write_creates_only_where_it_may(db: Any) -> None:
    with pytest.raises(te.NotFound) as caught:
        await db.topic("t").append(1, create=False)
    assert caught.value.code == "topic_not_found"
    assert await all_of(db.topics()) == []


async def test_topics_are_listed_in_order(db: Any) -> None:
    for name in ("b", "a.2", "a.1"):
        await db.topic(name).append([1, 2])
    await db.queue("a.q")
    listed = await all_of(db.topics())
    assert [(i.topic, i.type, i.count) for i in listed] == [
        ("a.1", "log", 2),
        ("a.2", "log", 2),
        ("a.q", "queue", 0),
        ("b", "log", 2),
    ]
    assert [i.topic for i in await all_of(db.topics("a."))] == ["a.1", "a.2", "a.q"]
    assert [i.topic for i in await all_of(db.queues())] == ["a.q"]


async def test_a_dropped_topic_is_gone(db: Any) -> None:
    t = db.topic("t")
    await t.append(1)
    with pytest.raises(te.Conflict) as caught:
        await t.drop(if_empty=True)
    assert caught.value.code == "topic_not_empty"
    assert await t.drop() is True
    assert await t.drop() is False
    with pytest.raises(te.NotFound):
        await t.state()
    assert (await t.append(1)).first_seq == 1


async def test_deletes(db: Any) -> None:
    t = db.topic("t")
    await t.append([te.NewRecord(i, tag=f"{'ab'[i % 2]}:{i}") for i in range(10)])
    deleted = await t.delete(tag="a:*", before=6)
    assert (deleted.deleted, deleted.head_seq, deleted.count) == (3, 10, 7)
    assert (await t.delete(tag="b:1")).deleted == 1
    assert (await t.delete(before=9)).deleted == 4
    items = await all_of(t.read(after=0))
    assert datas(items) == [8, 9]
    assert not [i for i in items if isinstance(i, te.Gap)], "a delete is no loss"
    assert (await t.delete(seqs=[9, 9, 3, 77])).deleted == 1
    assert (await t.delete(seqs=[])).deleted == 0
    assert datas(await all_of(t.read(after=0))) == [9]
    with pytest.raises(te.InvalidRequest):
        await t.delete()


async def test_trims(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(10)))
    await t.delete(seqs=[9])
    trimmed = await t.trim(3)
    assert (trimmed.deleted, trimmed.head_seq, trimmed.count) == (6, 10, 3)
    assert datas(await all_of(t.read(after=0))) == [6, 7, 9]
    assert (await t.trim(3)).deleted == 0
    assert (await t.trim(2**40)).deleted == 0
    assert (await t.trim(0)).count == 0
    with pytest.raises(te.NotFound):
        await db.topic("none").trim(1)
    with pytest.raises(te.InvalidRequest, match="count"):
        await t.trim(-1)


async def test_expiry_of_a_record_was_asked_for_and_is_silent(db: Any) -> None:
    t = db.topic("t")
    await t.append([te.NewRecord("short", ttl=0.001), "long"])

    async def gone() -> bool:
        return datas(await all_of(t.read(after=0, gaps="raise"))) == ["long"]

    await eventually(gone)


async def test_expiry_by_the_topic_is_a_loss(db: Any) -> None:
    t = db.topic("t", ttl=0.001)
    await t.append(["a", "b"])
    lost = te.Gap("t", 1, 2, "ttl", 2)

    async def told() -> bool:
        return await all_of(t.read(after=0)) == [lost]

    await eventually(told)


async def test_a_full_topic_refuses(db: Any) -> None:
    t = db.topic("t", cap_records=2, discard="reject")
    await t.append([1, 2])
    with pytest.raises(te.Full) as caught:
        await t.append(3)
    assert (caught.value.code, caught.value.retryable) == ("topic_full", True)
    await t.delete(before=2)
    assert (await t.append(3)).first_seq == 3


async def test_seek_by_time(db: Any) -> None:
    t = db.topic("t")
    await t.append(["old", "new"])
    ts = (await t.tail(1))[0].ts
    assert await t.seek(ts) == 0
    assert await t.seek(ts + 60_000) == 2


async def test_waiting_for_a_record(db: Any) -> None:
    t = db.topic("t")
    await t.append(1)
    assert await t.wait(0) is True
    assert await t.wait(1, timeout=0) is False
    assert await t.wait(1, timeout=0.01) is False
    with pytest.raises(te.NotFound):
        await db.topic("none").wait(0, timeout=0)


async def test_what_the_database_says_of_itself(db: Any) -> None:
    before = await db.metrics()
    await db.topic("t").append([1, 2, 3])
    await db.sync()
    await db.checkpoint()
    found = await db.verify()
    assert found.ok
    assert found.records >= 3
    counted = await db.metrics()
    grown = [counted[name] - before[name] for name in ("appends", "append_records")]
    assert grown == [1, 3]
    assert not db.closed


async def test_a_notebook_shows_the_newest_rows_and_rates(db: Any) -> None:
    t = db.topic("t")
    for n in range(12):
        await t.append({"n": f"<{n}>"}, tag="eu")
        await asyncio.sleep(0.002)  # sleep: record times are in ms
    await db.queue("jobs")
    shown, of_all, text = (
        plain(t)._repr_html_(),
        plain(db)._repr_html_(),
        repr(plain(t)),
    )
    if text == f"<aio Topic 't' of {db.path!r}>":
        assert db.path.startswith("http"), "what would have to be awaited is not shown"
        assert ("t" in shown, db.path in of_all) == (True, True)
        return
    assert "12 records" in text
    assert "records/s" in shown
    assert [f"&lt;{n}&gt;" in shown for n in (1, 2, 11)] == [False, True, True]
    assert "eu" in shown
    assert all(f"<td>{name}</td>" in of_all for name in ("t", "jobs"))
    assert "not created yet" in plain(db.topic("none"))._repr_html_()
    await db.close()
    assert "closed" in plain(t)._repr_html_()
    assert "closed" in plain(db)._repr_html_()


async def test_tables_are_batches(db: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    t = db.topic("t")
    meta = pa.array([[("k", "v")], None], pa.map_(pa.utf8(), pa.utf8()))
    columns = {"data": ['{"n":1.50}', "[2]"], "tag": ["a", None], "meta": meta, "other": [1, 2]}
    ack = await t.append_arrow(pa.table(columns), tag="all", origin="n", idempotency_key="k")
    assert (ack.first_seq, ack.last_seq, ack.deduped) == (1, 2, False)
    assert (
        await t.append_arrow(pa.table(columns), tag="all", origin="n", idempotency_key="k")
    ).deduped
    one, two = await t.tail(2)
    assert (bytes(one.raw), one.tag, one.origin, one.meta) == (b'{"n":1.50}', "a", "n", {"k": "v"})
    assert (two.data, two.tag, two.origin, two.meta) == ([2], "all", "n", None)
    await t.append_arrow(pa.table({"data": [b"\x00", b"x"]}))
    assert datas(await t.tail(2)) == [b"\x00", b"x"]
    table = await t.read(to_seq=2).to_arrow()
    assert (await db.topic("copy", durability="fsync").append_arrow(table)).last_seq == 2
    assert datas(await all_of(db.topic("copy").read())) == [{"n": 1.5}, [2]]
    for bad in ({"other": [1]}, {"data": [None, "1"]}, {"data": [1]}, {"data": ["{"]}):
        with pytest.raises(te.InvalidRequest):
            await t.append_arrow(pa.table(bad))
