"""What only the embedded asyncio client has: bridges, loops, threads, forks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import select
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.processes import LIMIT
from support.waiting import until
from topics_engine.aio import bridge


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(LIMIT):
            return await work

    return asyncio.run(bounded())


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


async def cancelled_when_answered(wait: Coroutine[Any, Any, Any], act: Callable[[], Any]) -> None:
    """Cancels a wait between its answer and the task that awaits it."""
    task = asyncio.ensure_future(wait)
    await asyncio.sleep(0)
    here = bridge.current_bridge()
    act()
    while here._pending:
        # No await: the task cannot take what is drained.
        assert select.select([here.calls.fd], [], [], 60)[0], "the answer never came"
        here._drain()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("durable", [False, True])
def test_jobs_that_a_cancelled_task_did_not_take_are_given_back(
    data_dir: Path, durable: bool
) -> None:
    async def main() -> None:
        async with te.aio.open(data_dir) as db:
            jobs = await db.queue("jobs", leases_durable=durable)
            add = jobs._sync.append
            await cancelled_when_answered(jobs.claim("w", wait=60), lambda: add("x"))
            (job,) = await jobs.claim("v", wait=60)
            assert (job.data, job.deliveries) == ("x", 1)

    run(main())


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_batch_that_a_cancelled_task_did_not_take_comes_next(
    data_dir: Path, mode: te.aio.consumer.Mode
) -> None:
    async def main() -> None:
        async with te.aio.open(data_dir) as db:
            t = db.topic("t")
            await t.append([1, 2, 3])
            c = await t.consumer("c", mode)
            await cancelled_when_answered(c.read(max_records=2), lambda: None)
            assert [r.data for r in await c.read() if isinstance(r, te.Record)] == [1, 2]
            assert [r.data for r in await c.read() if isinstance(r, te.Record)] == [3]

    run(main())


def test_a_write_without_a_sync_is_over_inside_the_call(data_dir: Path) -> None:
    async def main() -> None:
        async with te.aio.open(data_dir) as db:
            for durability in ("memory", "disk"):
                t = db.topic(durability, durability=durability)
                await t.append(0)
                await t.sync()
                over = 0
                while over < 10:
                    write = asyncio.create_task(t.append("x"))
                    await asyncio.sleep(0)
                    # If it is not done, it was suspended, because a thread of the engine led.
                    over += write.done()
                    await write
            t = db.topic("fsync", durability="fsync")
            await t.append(1)
            assert (await t.append(2)).first_seq == 2

    run(main())


def test_one_bridge_per_loop_and_none_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with te.aio.open(tmp_path / "a") as a, te.aio.open(tmp_path / "b") as b:
            await a.topic("t").append(1)
            await b.topic("t").append(1)
            assert len(bridge._bridges) == 1
        assert bridge._bridges == {}

    run(main())
    gc.collect()
    before = open_fds()
    for _ in range(5):
        run(main())
    gc.collect()
    # The thread that delivered the last completion has the eventfd until it returns.
    until(lambda: open_fds() <= before)


def test_one_database_in_many_loops_one_after_the_other(data_dir: Path) -> None:
    async def opened() -> te.aio.Database:
        return await te.aio.open(data_dir)

    async def use(db: te.aio.Database, n: int) -> None:
        jobs = await db.queue("jobs")
        await jobs.append(n)
        (job,) = await jobs.claim("w")
        async with job:
            assert job.data == n
        # Left behind when the loop is closed.
        asyncio.get_running_loop().create_task(jobs.claim("late", wait=60))
        await asyncio.sleep(0)

    db = run(opened())
    for n in range(5):
        run(use(db, n))
        assert len(bridge._bridges) == 1, "closed loops are forgotten"
    jobs = run(db.queue("jobs"))
    run(jobs.append("last"))
    (job,) = run(jobs.claim("w", wait=60))
    assert job.data == "last", "no wait of a closed loop has it"
    run(db.close())
    assert bridge._bridges == {}


def test_one_database_in_many_loops_at_once(data_dir: Path) -> None:
    async def main() -> None:
        async with te.aio.open(data_dir) as db:
            t = db.topic("t", durability="fsync")
            await t.append(0)

            async def write() -> None:
                async with db.watch("t") as watch:
                    await asyncio.gather(*(t.append(i) for i in range(20)))
                    for _ in range(20):
                        assert await watch.next(wait=60) is not None

            await asyncio.gather(*(asyncio.to_thread(run, write()) for _ in range(4)))
            assert (await t.state()).head_seq == 81

    run(main())
    assert bridge._bridges == {}


def test_a_close_in_one_loop_wakes_waits_in_another(data_dir: Path) -> None:
    waiting = threading.Event()
    said: list[BaseException] = []

    async def wait(db: te.aio.Database) -> None:
        jobs = await db.queue("jobs")
        asyncio.get_running_loop().call_soon(waiting.set)
        try:
            await jobs.claim("w", wait=3600)
        except te.Closed as error:
            said.append(error)

    async def main() -> None:
        db = await te.aio.open(data_dir)
        thread = threading.Thread(target=run, args=(wait(db),), daemon=True)
        thread.start()
        assert await asyncio.to_thread(waiting.wait, 60)
        await db.close()
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()

    run(main())
    assert len(said) == 1


def test_waits_hold_no_thread_and_do_not_block_the_loop(data_dir: Path) -> None:
    async def main() -> None:
        async with te.aio.open(data_dir) as db:
            t, jobs = db.topic("t"), await db.queue("jobs")
            await t.append(1)
            c = await t.consumer("c", start="latest")
            watch = db.watch("t")
            await asyncio.gather(t.wait(1, 0.001), jobs.claim("w", wait=0.001), watch.next(0.001))
            before = threads()
            waits = [asyncio.ensure_future(t.wait(1)) for _ in range(50)]
            waits += [asyncio.ensure_future(jobs.claim("w", wait=3600)) for _ in range(50)]
            waits += [asyncio.ensure_future(c.read(wait=3600)) for _ in range(50)]
            waits += [asyncio.ensure_future(anext(watch))]
            await asyncio.sleep(0)
            assert not any(w.done() for w in waits)
            # The few threads of the bridge may have started meanwhile.
            assert threads() < before + 50
            for w in waits:
                w.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            assert len(bridge.current_bridge()._pending) == 0

    run(main())


def test_a_cancelled_open_leaves_the_directory_free(data_dir: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(te.aio.open(data_dir)._wait())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        while True:
            try:
                db = await te.aio.open(data_dir)
            except te.Locked:
                await asyncio.sleep(0.01)
                continue
            break
        await db.close()

    run(main())


def test_an_exit_in_the_middle_of_a_verb_is_clean(data_dir: Path) -> None:
    code = """
        import asyncio, sys, topics_engine as te

        async def main():
            db = await te.aio.open(sys.argv[1])
            t = db.topic("t", durability="fsync")
            await t.append(list(range(1000)))
            for verb in (db.checkpoint, db.sync, t.state, lambda: t.tail(500)):
                asyncio.ensure_future(verb())
            await asyncio.sleep(0)

        asyncio.run(main())
        """
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(data_dir)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_is_told(data_dir: Path) -> None:
    code = """
        import asyncio, os, sys, topics_engine as te

        async def calls(db, t, watch):
            said = 0
            for call in (lambda: t.append(2), t.state, lambda: t.wait(1), watch.next, db.sync):
                try:
                    await asyncio.wait_for(call(), 60)
                except te.Closed as error:
                    assert "fork" in str(error), error
                    said += 1
            return said

        async def main():
            async with te.aio.open(sys.argv[1]) as db:
                t = db.topic("t")
                await t.append(1)
                watch = db.watch("t")
                child = os.fork()
                if child == 0:
                    # The same loop cannot go on in a child; a new one can.
                    asyncio._set_running_loop(None)
                    said = asyncio.new_event_loop().run_until_complete(calls(db, t, watch))
                    os._exit(7 if said == 5 else said)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                await t.append(3)
                assert [r.data async for r in t.read()] == [1, 3]

        asyncio.run(main())
        """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(data_dir)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_twins_have_the_arguments_and_the_words_of_what_they_are_twins_of() -> None:
    for async_handle, sync in [
        (te.aio.Topic, te.Topic),
        (te.aio.Queue, te.Queue),
        (te.aio.Consumer, te.Consumer),
        (te.aio.Router, te.Router),
        (te.aio.Read, te.Read),
        (te.aio.Watch, te.Watch),
        (te.aio.Database, te.Database),
    ]:
        for name in dir(sync):
            theirs = getattr(sync, name)
            if name.startswith("_"):
                continue
            ours = getattr(async_handle, name)
            if inspect.isfunction(theirs):
                expected = list(inspect.signature(theirs).parameters)
                assert list(inspect.signature(ours).parameters) == expected, (async_handle, name)
                assert ours.__doc__, (async_handle, name)
