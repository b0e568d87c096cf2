"""Opening, closing, locks; many tasks at once; errors."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te

from .adapter import EMBEDDED, Open, all_of, datas, until_calls_wait


async def test_a_close_is_idempotent_and_final(open_db: Open) -> None:
    async with open_db() as db:
        t, jobs = db.topic("t"), await db.queue("jobs")
        await t.append(1)
        await jobs.append([1, 2])
        job, _ = await jobs.claim("w", 2)
        c = await t.consumer("c")
        router = await db.router("r", source="t", dest="u")
        await db.close()
        await db.close()
        assert db.closed
        for call in (
            lambda: t.append(1),
            lambda: t.append_batch([b"1"]),
            lambda: all_of(t.read()),
            lambda: t.tail(1),
            lambda: t.state(),
            lambda: t.create(),
            lambda: t.delete(before=1),
            lambda: t.drop(),
            lambda: t.wait(0),
            lambda: t.sync(),
            lambda: t.seek(0),
            lambda: t.consumer("d"),
            lambda: t.consumers(),
            lambda: c.read(),
            lambda: c.commit(1),
            lambda: c.seek(0),
            lambda: jobs.claim("w"),
            lambda: jobs.peek(),
            lambda: jobs.redrive(),
            lambda: job.ack(),
            lambda: job.nack(),
            lambda: job.extend(),
            lambda: router.state(),
            lambda: db.queue("x"),
            lambda: db.routers(),
            lambda: all_of(db.topics()),
            lambda: all_of(db.watch({"t": 0})),
            lambda: db.sync(),
            lambda: db.checkpoint(),
        ):
            with pytest.raises(te.Closed) as caught:
                await call()
            assert caught.value.code == "shutting_down"


async def test_a_close_wakes_every_waiter(open_db: Open) -> None:
    async with open_db() as db:
        t, jobs = db.topic("t"), await db.queue("jobs")
        await t.append(1)
        once = await t.consumer("once", "at_most_once", start="latest")
        again = await t.consumer("again", start="latest")
        waits = [
            asyncio.ensure_future(wait)
            for wait in (
                t.wait(1),
                t.wait(1, timeout=60),
                jobs.claim("w", wait=60),
                anext(jobs.work("v")),
                once.read(wait=60),
                again.read(wait=60),
                all_of(db.watch("t")),
            )
        ]
        await until_calls_wait()
        assert not any(wait.done() for wait in waits)
        await db.close()
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [te.Closed] * len(waits)


@pytest.mark.parametrize("open_db", EMBEDDED, indirect=True)
async def test_a_second_open_is_locked(open_db: Open) -> None:
    # A server's directory is locked by the server: test_serve.py.
    async with open_db():
        with pytest.raises(te.Locked) as caught:
            async with open_db():
                pass
        assert caught.value.pid == os.getpid()
    async with open_db() as db:
        assert not db.closed


async def test_what_was_acked_is_there_after_a_reopen(open_db: Open, tmp_path: Path) -> None:
    async with open_db() as db:
        await db.topic("t", durability="fsync").append([1, 2])
        await db.topic("d").append({"a": 1}, tag="x")
    async with open_db() as db:
        assert datas(await all_of(db.topic("t").read())) == [1, 2]
        assert (await db.topic("t").append(3)).first_seq == 3
        assert datas(await all_of(db.topic("d").read(tag="x"))) == [{"a": 1}]
    assert te.verify(tmp_path / "data").ok


@pytest.mark.parametrize("open_db", EMBEDDED, indirect=True)
async def test_settings_are_said(open_db: Open) -> None:
    # A client does not know what its server was started with.
    async with open_db(max_topics=1) as db:
        assert db.settings["max_topics"] == 1


async def test_a_cap_is_no_overload(open_db: Open) -> None:
    async with open_db(max_topics=1) as db:
        await db.topic("a").append(1)
        with pytest.raises(te.Throttled) as caught:
            await db.topic("b").append(1)
        assert caught.value.retryable
        assert caught.value.retry_after == 1.0
        assert caught.value.detail["limit"] == "max_topics"


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_handles_are_shared(db: Any, durability: str) -> None:
    t = db.topic("t", durability=durability)

    async def write(n: int) -> list[int]:
        return [(await t.append([n, i])).first_seq for i in range(25)]

    seqs = await asyncio.gather(*(write(n) for n in range(8)))
    records = await all_of(t.read(after=0))
    assert [r.seq for r in records] == list(range(1, 401))
    # Each writer's batches are whole and in its order.
    by_seq = {r.seq: r.data for r in records}
    for n, mine in enumerate(seqs):
        assert mine == sorted(mine)
        assert [(by_seq[s], by_seq[s + 1]) for s in mine] == [(n, i) for i in range(25)]


async def test_errors_are_typed(db: Any) -> None:
    t, log = db.topic("t"), db.topic("log")
    await t.append(1)
    await log.append(1)
    jobs, none = await db.queue("jobs"), await db.router("none")
    for call, kind, code in [
        (lambda: t.append(object()), te.InvalidRequest, "invalid_request"),
        (lambda: t.append([]), te.InvalidRequest, "invalid_request"),
        (lambda: t.append(1, meta={"k": 1}), te.InvalidRequest, "invalid_request"),
        (lambda: db.topic("no/name").append(1), te.InvalidRequest, "invalid_request"),
        (lambda: db.topic("none").state(), te.NotFound, "topic_not_found"),
        (lambda: db.topic("none").delete(before=1), te.NotFound, "topic_not_found"),
        (lambda: db.topic("none").consumer("c"), te.NotFound, "topic_not_found"),
        (lambda: t.consumer("no/name"), te.InvalidRequest, "invalid_request"),
        (lambda: t.append(1, expect_head=7), te.Conflict, "head_mismatch"),
        (lambda: db.queue("log"), te.Conflict, "topic_exists_incompatible"),
        (lambda: none.state(), te.NotFound, "router_not_found"),
        (lambda: jobs.claim("x" * 100_000), te.InvalidRequest, "invalid_request"),
    ]:
        with pytest.raises(kind) as caught:
            await call()
        assert caught.value.code == code, str(caught.value)
    with pytest.raises(TypeError):
        await t.append(1, no_such_option=True)
