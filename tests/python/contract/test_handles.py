"""What handles are to Python: containers, iterables, values that show themselves."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import topics_engine as te

from .adapter import Awaited, all_of, datas, eventually


async def exists(db: Any, name: object) -> bool:
    if isinstance(db, Awaited):
        return await asyncio.to_thread(lambda: name in db._handle)
    return bool(await db.exists(name))


async def test_a_database_is_a_container_of_topics(db: Any) -> None:
    assert not await exists(db, "a")
    await db.topic("b").append(1)
    await db.queue("a")
    assert await exists(db, "a")
    assert not await exists(db, "no name at all!")
    assert not await exists(db, 7)
    if isinstance(db, Awaited):
        plain = db._handle
        assert await asyncio.to_thread(lambda: (list(plain), len(plain), bool(plain))) == (
            ["a", "b"],
            2,
            True,
        )
    else:
        assert await all_of(db) == ["a", "b"]


async def test_times(db: Any) -> None:
    t = db.topic("t")
    await t.append([0, 1])
    await asyncio.sleep(0.01)  # sleep: record times are in ms
    await t.append([2, 3])
    items = await all_of(t.read())
    second = items[2].time
    assert second.tzinfo is UTC
    assert second == datetime.fromtimestamp(items[2].ts / 1000, UTC)
    for at in (second, second.isoformat(), items[2].ts):
        assert datas(await all_of(t.read(since=at))) == [2, 3]
        assert datas(await all_of(t.read(until=at))) == [0, 1]
    assert datas(await all_of(t.read(since="1h"))) == [0, 1, 2, 3]
    assert datas(await all_of(t.read(since=timedelta(hours=1), until=second))) == [0, 1]
    assert datas(await all_of(t.read(until="1h"))) == []
    assert (await t.read(since=second).to_arrow())["seq"].to_pylist() == [3, 4]
    assert await t.seek(ts=second) == 2
    with pytest.raises(te.InvalidRequest, match="either after a seq or at a time"):
        t.read(3, since="1h")
    with pytest.raises(te.InvalidRequest, match="either at a seq or at a time"):
        t.read(to_seq=3, until="1h")


async def test_durations(db: Any) -> None:
    t = db.topic("t", ttl="7d", idempotency_window=timedelta(minutes=5))
    config = (await t.create()).config
    assert (config["ttl"], config["idempotency_window"]) == (7 * 86400.0, 300.0)
    again = (await db.topic("u").create(**config)).config
    assert again == config
    q = await db.queue("q", lease="90s", retry_backoff=0.25)
    config = (await q.state()).config
    assert (config["lease"], config["retry_backoff"]) == (90.0, 0.25)
    await q.append(1)
    (job,) = await q.claim("w", lease=timedelta(milliseconds=1500))
    assert job.lease == 1.5


async def test_options_of_an_append(db: Any) -> None:
    q = await db.queue("q")
    at = datetime.now(UTC) + timedelta(hours=2)
    await q.append(["a", te.NewRecord("b", lane=1, group="own")], lane=7, group="g", tag="t")
    await q.append("later", delay="1h")
    await q.append("then", deliver_at=at)
    seen = {p.data: (p.state, p.lane, p.group, p.tag) for p in await q.peek()}
    assert seen == {
        "a": ("ready", 7, "g", "t"),
        "b": ("ready", 1, "own", "t"),
        "later": ("delayed", 5, None, None),
        "then": ("delayed", 5, None, None),
    }


async def test_jobs_show_their_record(db: Any) -> None:
    q = await db.queue("q")
    await q.append({"n": 1}, tag="t", meta={"k": "v"})
    (job,) = await q.claim("w")
    assert (job.data, job.tag, job.meta, job.deliveries) == ({"n": 1}, "t", {"k": "v"}, 1)
    assert (job.time, job.record.seq, job.worker) == (job.record.time, job.seq, "w")


async def test_data_is_decoded_once(db: Any) -> None:
    await db.topic("t").append({"a": [1]})
    (record,) = await all_of(db.topic("t").read())
    assert record.data is record.data
    (again,) = await all_of(db.topic("t").read())
    assert (record == again, hash(record) == hash(again)) == (True, True)
    copied = pickle.loads(pickle.dumps(record))
    assert (copied, copied.data) == (record, {"a": [1]})


async def test_consumers_are_iterable(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(5)))
    c = await t.consumer("c")
    seen = []
    async for batch in c.batches(max_records=2, wait=0):
        if not batch:
            break
        assert isinstance(batch, Sequence)
        seen.append([item.data for item in batch])
        assert batch[0] is batch.items[0]
        assert batch[-1:] == batch.items[-1:]
        found = batch.commit()
        if found is not None:
            await found
    assert seen == [[0, 1], [2, 3], [4]]
    assert c.cursor == 5
    await t.append([5])
    async for batch in c:
        assert datas(batch) == [5]
        break
    (info,) = await db.consumers()
    assert (info.topic, info.name, info.cursor, info.lag) == ("t", "c", 5, 1)


async def test_reprs_say_what_they_are_and_never_raise(db: Any) -> None:
    t = db.topic("t")
    await t.append([1, 2], tag="<b>")
    q = await db.queue("q")
    await q.append([1, 2, 3])
    await q.claim("w")
    c = await t.consumer("c")
    batch = await c.read()
    handles = [db, t, q, c, await db.router("r", "t", "d"), t.read(), db.transaction()]
    shown = [await asyncio.to_thread(repr, getattr(h, "_handle", h)) for h in handles]
    assert all(text.startswith("<") and text.endswith(">") for text in shown), shown
    if isinstance(db, Awaited):
        assert "2 ready, 1 leased, 0 dead" in shown[2]
    values = [batch, batch[0], await t.state(), await db.verify()]
    for value in values:
        html = value._repr_html_()
        assert "<table>" in html
        assert "<b></td>" not in html
    await db.close()
    for handle in handles:
        assert await asyncio.to_thread(repr, getattr(handle, "_handle", handle))


async def test_handles_refuse_to_be_pickled(db: Any) -> None:
    t = db.topic("t")
    await t.append(1)
    q = await db.queue("q")
    await q.append(1)
    (job,) = await q.claim("w")
    for handle in (db, t, q, t.read(), await t.consumer("c"), await db.router("r"), job):
        with pytest.raises(TypeError, match="cannot be pickled: open or connect again"):
            pickle.dumps(getattr(handle, "_handle", handle))


async def test_leases_of_many_jobs_are_renewed(db: Any) -> None:
    q = await db.queue("q", lease="3s", retry_backoff=0)
    await q.append(list(range(20)))
    jobs = await q.claim("w", 20)
    # Whether or not their block has begun.
    for job in jobs[:10]:
        await job.__aenter__()
    before = max(job.deadline for job in jobs)

    async def all_renewed() -> bool:
        leased = await q.peek(state="leased")
        return len(leased) == 20 and all(p.deadline > before for p in leased)

    await eventually(all_renewed)
    for job in jobs[:10]:
        await job.__aexit__(None, None, None)
    assert await q.ack(jobs[10:]) == []
    assert (await q.state()).count == 0
