"""Consumers: stored cursors, modes, budgets, seeks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import topics_engine as te

from .adapter import Open, datas, eventually, until_calls_wait


async def test_a_consumer_goes_on_where_it_was(open_db: Open) -> None:
    async with open_db() as db:
        orders = db.topic("orders")
        await orders.append(list(range(5)))
        c = await orders.consumer("billing")
        assert (c.topic, c.name, c.mode, c.cursor) == ("orders", "billing", "at_least_once", 0)
        batch = await c.read(max_records=2)
        assert (datas(batch), batch.cursor, batch.lag) == ([0, 1], 2, 3)
        await c.commit(batch.cursor)
        assert datas(await c.peek()) == [2, 3, 4]
        assert datas(await c.read(checkpoint=False)) == [2, 3, 4]
        assert c.cursor == 2
        await c.commit(1)
        assert c.cursor == 2, "a commit never goes back"
        with pytest.raises(te.InvalidRequest):
            await c.commit(9)
    async with open_db() as db:
        c = await db.topic("orders").consumer("billing")
        assert c.cursor == 2
        assert datas(await c.read()) == [2, 3, 4]


async def test_at_most_once_is_stored_before_it_is_handed_out(open_db: Open) -> None:
    async with open_db() as db:
        await db.topic("t").append(list(range(5)))
        c = await db.topic("t").consumer("once", "at_most_once")
        assert datas(await c.read(max_records=3)) == [0, 1, 2]
        assert c.cursor == 3
        with pytest.raises(te.Conflict):
            await db.topic("t").consumer("once", "at_least_once")
    async with open_db() as db:
        c = await db.topic("t").consumer("once")
        assert c.mode == "at_most_once"
        assert datas(await c.read()) == [3, 4]


async def test_readers_of_at_most_once_share_without_a_repeat(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(60)))
    seen: list[int] = []

    async def reader() -> None:
        c = await t.consumer("once", "at_most_once")
        while batch := datas(await c.read(max_records=7)):
            seen.extend(batch)

    await asyncio.gather(*(reader() for _ in range(4)))
    assert sorted(seen) == list(range(60))


async def test_auto_commit_stores_what_came_before(open_db: Open) -> None:
    async with open_db() as db:
        await db.topic("t").append(list(range(6)))
        c = await db.topic("t").consumer("c", auto_commit=True)
        await c.read(max_records=2)
        await c.read(max_records=2)
        del c
    async with open_db() as db:
        c = await db.topic("t").consumer("c")
        assert c.cursor in (0, 2), "never what the last read handed out"


async def test_auto_commit_stores_at_each_read(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(200)))
    c = await t.consumer("c", auto_commit=True)
    for n in range(1, 6):
        assert (await c.read(max_records=10)).cursor == 10 * n

        async def is_stored(cursor: int = 10 * (n - 1)) -> bool:
            (info,) = await t.consumers()
            return bool(info.cursor == cursor)

        await eventually(is_stored)
    assert datas(await (await t.consumer("c")).read(max_records=2)) == [40, 41]


async def test_a_read_waits_for_a_record(db: Any) -> None:
    for mode in ("at_least_once", "at_most_once"):
        t = db.topic(mode)
        await t.append("old")
        c = await t.consumer("c", mode, start="latest")
        read = asyncio.create_task(c.read(wait=60))
        await until_calls_wait()
        await t.append("new")
        assert datas(await read) == ["new"]
        assert len(await c.read(wait=0.01)) == 0


async def test_budgets_filters_and_loss(db: Any) -> None:
    t = db.topic("t", cap_records=6)
    await t.append([te.NewRecord("x" * 100, tag=f"{'ab'[i % 2]}") for i in range(6)])
    c = await t.consumer("c")
    assert len(await c.read(max_bytes=250)) == 2
    assert len(await c.read(max_bytes=1)) == 1, "one at least"
    assert [r.tag for r in await c.read(tag="b")] == ["b", "b"]
    d = await t.consumer("d")
    await t.append([1, 2])
    gap, *rest = await d.read()
    assert (gap.first, gap.last, gap.reason) == (1, 2, "cap")
    assert len(rest) == 6


async def test_seeks(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(5)))
    c = await t.consumer("c")
    assert await c.seek(3) == 3
    assert datas(await c.read()) == [3, 4]
    assert await c.seek(te.EARLIEST) == 0
    assert await c.seek(te.LATEST) == 5
    assert await c.seek(ts=0) == 0
    assert c.cursor == 0
    with pytest.raises(te.InvalidRequest):
        await c.seek(1, ts=0)
    with pytest.raises(te.InvalidRequest):
        await c.seek(6)


async def test_lag_counts_the_records_that_are_there(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(90)), tag="old:1")
    await t.append(list(range(10)), tag="new:1")
    start, middle = await t.consumer("start"), await t.consumer("middle")
    await middle.commit(95)

    async def lags() -> list[tuple[str, int]]:
        listed = await t.consumers()
        gauges = (await db.metrics())["per_topic"]["t"]
        assert gauges["consumer_lag"] == {c.name: c.lag for c in listed}
        for c in listed:
            assert (gauges["consumer_lag_seconds"][c.name] > 0) <= (c.lag > 0)
            assert (c.lag_seconds > 0) <= (c.lag > 0)
        return [(c.name, c.lag) for c in listed]

    assert await lags() == [("middle", 5), ("start", 100)]
    await t.delete(tag="old:1")
    assert await lags() == [("middle", 5), ("start", 10)]
    batch = await start.read(max_records=4)
    assert (batch.cursor, batch.lag) == (94, 6)
    await t.delete(seqs=[96, 98])
    assert await lags() == [("middle", 3), ("start", 10 - 2)]
    await t.delete(before=101)
    assert await lags() == [("middle", 0), ("start", 0)]
    batch = await start.read()
    assert (datas(batch), batch.lag, batch.lag_seconds) == ([], 0, 0)


async def test_evicted_records_are_no_lag(db: Any) -> None:
    t = db.topic("t", cap_records=3)
    await t.append([1])
    c = await t.consumer("c")
    await t.append([2, 3, 4, 5])
    assert [(i.cursor, i.lag) for i in await t.consumers()] == [(0, 3)]
    assert (await c.read(max_records=1)).lag == 2


async def test_the_oldest_ready_job_has_an_age(db: Any) -> None:
    q = await db.queue("q", lease="10m")
    await q.append([1])

    async def age() -> float:
        return float((await db.metrics())["per_topic"]["q"]["oldest_ready_seconds"])

    while not await age():
        await asyncio.sleep(0.005)
    (job,) = await q.claim("w")
    assert await age() == 0
    await job.nack(delay="10m")
    assert await age() == 0
    await q.promote([1])
    while not await age():
        await asyncio.sleep(0.005)


async def test_consumers_are_listed_and_dropped(db: Any) -> None:
    t = db.topic("t")
    await t.append([1, 2, 3])
    b = await t.consumer("b", "at_most_once")
    a = await t.consumer("a", start="latest")
    await b.read(max_records=1)
    listed = await t.consumers()
    assert [(c.name, c.mode, c.cursor, c.lag) for c in listed] == [
        ("a", "at_least_once", 3, 0),
        ("b", "at_most_once", 1, 2),
    ]
    assert listed[1].lag_seconds >= 0
    assert await a.drop() is True
    assert await a.drop() is False
    assert await t.drop_consumer("b") is True
    assert await t.drop_consumer("b") is False
    assert await t.consumers() == []
    with pytest.raises(te.NotFound) as caught:
        await a.read()
    assert caught.value.code == "consumer_not_found"


async def test_a_second_reader_takes_over_at_what_is_stored(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(6)))
    old, new = await t.consumer("c"), await t.consumer("c")
    assert datas(await old.read(max_records=2)) == [0, 1]
    await old.commit(2)
    batch = await old.read(max_records=2)
    assert datas(batch) == [2, 3]
    assert datas(await new.peek(max_records=1)) == [2], "a peek takes nothing over"
    assert (await t.consumers())[0].cursor == 2
    assert datas(await old.read(max_records=1)) == [4]
    assert datas(await new.read(max_records=3)) == [2, 3, 4]
    for call in (old.read, old.peek, batch.commit, lambda: old.commit(5), lambda: old.seek(0)):
        with pytest.raises(te.ConsumerFenced, match="open a new handle") as caught:
            await call()
        error = caught.value
        assert (error.code, error.status, error.retryable) == ("consumer_fenced", 409, False)
        assert error.detail["consumer"] == "c"
    assert (await t.consumers())[0].cursor == 2, "none of it had an effect"
    await new.commit(5)
    assert datas(await new.read()) == [5]
    back = await t.consumer("c")
    assert datas(await back.read()) == [5]
    with pytest.raises(te.ConsumerFenced):
        await new.commit(6)


async def test_a_seek_takes_nothing_over(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(4)))
    reader = await t.consumer("c")
    assert datas(await reader.read(max_records=2)) == [0, 1]
    tool = await t.consumer("c")
    await tool.commit(1)
    assert await tool.seek(te.EARLIEST) == 0
    assert datas(await reader.read(max_records=1)) == [2]
    await reader.commit(2)
    # It reads from what is stored when it takes over, wherever it was opened or sought to.
    late = await t.consumer("c")
    await reader.seek(1)
    assert datas(await late.read(max_records=1)) == [1]
    with pytest.raises(te.ConsumerFenced):
        await tool.commit(3)


async def test_automatic_commits_end_with_a_takeover(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(6)))
    old = await t.consumer("c", auto_commit=True)
    await old.read(max_records=1)
    cursor = (await t.consumers())[0].cursor
    new = await t.consumer("c")
    assert datas(await new.read(max_records=1)) == [cursor]
    with pytest.raises(te.ConsumerFenced):
        await old.read()
    del old
    assert (await t.consumers())[0].cursor == cursor
