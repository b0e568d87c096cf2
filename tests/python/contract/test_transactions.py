"""Transactions: rows, cursors and acks, all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

import topics_engine as te

from .adapter import all_of, datas


async def test_consume_process_produce(db: Any) -> None:
    source, jobs = db.topic("in"), await db.queue("jobs")
    await source.append([1, 2, 3])
    await jobs.append(["a", "b"])
    c = await source.consumer("c")
    job, _ = await jobs.claim("w", max=2)
    async with job, db.transaction() as tx:
        tx.append("out", [10, 20], tag="t", expect_head=0)
        tx.append(db.topic("other"), {"x": 1}, origin="n", meta={"k": "v"})
        tx.commit(c, 2)
        tx.ack(job)
        with pytest.raises(te.InvalidRequest, match="after the end of its `with` block"):
            _ = tx.result
        assert [i.topic for i in await all_of(db.topics("o"))] == [], "nothing before the end"
    assert tx.result == te.Committed(0, False, {"other": (1, 1), "out": (1, 2)})
    assert datas(await all_of(db.topic("out").read())) == [10, 20]
    assert c.cursor == 2
    assert datas(await all_of(jobs.read())) == ["b"]


async def test_the_cursor_of_a_listed_consumer_is_moved(db: Any) -> None:
    source = db.topic("in")
    await source.append([1, 2, 3])
    await source.consumer("c")
    (listed,) = await source.consumers()
    async with db.transaction() as tx:
        tx.append("out", 1)
        tx.commit(listed, 2)
        with pytest.raises(te.InvalidRequest, match="consumer must be the handle of a consumer"):
            tx.commit("c", 2)
    assert (await source.consumer("c")).cursor == 2


async def test_an_exception_aborts(db: Any) -> None:
    async def fail() -> None:
        async with db.transaction() as tx:
            tx.append("out", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await all_of(db.topics()) == []


async def test_all_or_nothing(db: Any, name: str) -> None:
    await db.topic("b").append(1)

    async def attempt(head: int, **options: Any) -> Any:
        async with db.transaction(**options) as tx:
            tx.append("a", "row")
            tx.append("b", "row", expect_head=head)
        return tx.result

    with pytest.raises(te.Conflict) as caught:
        await attempt(7)
    assert caught.value.code == "head_mismatch"
    assert [i.topic for i in await all_of(db.topics())] == ["b"]
    first = await attempt(1, idempotency_key=name)
    again = await attempt(1, idempotency_key=name)
    assert (first.topics, again.topics) == ({"a": (1, 1), "b": (2, 2)},) * 2
    assert (first.deduped, again.deduped) == (False, True)
    assert (await attempt(2, writer=name)).epoch == 1
    assert (await db.topic("b").state()).head_seq == 3


async def test_two_relays_that_overlap_double_no_row(db: Any) -> None:
    out = db.topic("outbox")
    await out.append(list(range(5)))
    old, new = await out.consumer("relay"), await out.consumer("relay")

    async def relay(consumer: Any, batch: Any) -> None:
        async with db.transaction() as tx:
            tx.append("ledger", [r.seq for r in batch])
            tx.commit(consumer, batch.cursor)

    batches = [(consumer, await consumer.read()) for consumer in (old, new)]
    with pytest.raises(te.ConsumerFenced):
        await relay(*batches[0])
    assert [i.topic for i in await all_of(db.topics())] == ["outbox"], "it has no effect"
    await relay(*batches[1])
    with pytest.raises(te.ConsumerFenced):
        await relay(*batches[0])
    assert datas(await all_of(db.topic("ledger").read())) == [1, 2, 3, 4, 5]
    assert (await out.consumers())[0].cursor == 5
