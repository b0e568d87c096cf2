"""Remote clients and their process: Ctrl-C, forks, threads, and what is left over."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.faulty_server import Break, Faulty, Hang, Refuse, in_front_of
from support.gate import figure
from support.processes import LIMIT, child, until_all_wait
from support.server import Server

from .adapter import eventually

SYNC_WAITS = {
    "head": "t.wait(1)",
    "claim": "jobs.claim('w', wait=1000)",
    "work": "next(jobs.work('w'))",
    "consumer": "t.consumer('c', start='latest').read(wait=1000)",
    "watch": "next(db.watch('t'))",
    "batches": "next(db.watch('t').batches())",
    "once": "t.consumer('o', 'at_most_once', start='latest').read(wait=1000)",
}
LOOP_WAITS = {
    "head": "t.wait(1)",
    "claim": "jobs.claim('w', wait=1000)",
    "work": "anext(jobs.work('w'))",
    "watch": "anext(db.watch('t'))",
}


def interrupted(program: str, url: str, *servers: int) -> str:
    """What a program says to an interrupt that comes while it waits for servers."""
    head = """
        import asyncio, signal, sys, topics_engine as te
        # A process that was started in the background inherits it as ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        """
    code = textwrap.dedent(head) + textwrap.dedent(program)
    with child([sys.executable, "-c", code, url]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        # Before the wait has begun the interpreter raises it: either way it is heard.
        until_all_wait(process.pid, *servers)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0
    return out


@pytest.mark.parametrize("wait", SYNC_WAITS)
def test_ctrl_c_is_heard_in_a_wait(server: Server, wait: str) -> None:
    program = f"""
        with te.connect(sys.argv[1]) as db:
            t, jobs = db.topic("sync-{wait}"), db.queue("jobs-{wait}")
            t.append(1)
            try:
                print("waiting", flush=True)
                {SYNC_WAITS[wait].replace("'t'", f"'sync-{wait}'")}
            except KeyboardInterrupt:
                print("heard", t.append(2).first_seq, flush=True)
        """
    assert interrupted(program, server.url, server.pid) == "heard 2\n"


@pytest.mark.parametrize("wait", LOOP_WAITS)
def test_ctrl_c_ends_a_loop_that_waits(server: Server, wait: str) -> None:
    program = f"""
        async def main():
            async with te.aio.connect(sys.argv[1]) as db:
                t, jobs = db.topic("loop-{wait}"), await db.queue("jobs-loop-{wait}")
                await t.append(1)
                print("waiting", flush=True)
                await {LOOP_WAITS[wait].replace("'t'", f"'loop-{wait}'")}
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("heard", flush=True)
        """
    assert interrupted(program, server.url, server.pid) == "heard\n"


def test_ctrl_c_is_heard_by_who_retries_and_who_gets_no_answer(server: Server) -> None:
    program = """
        db = te.connect(sys.argv[1], deadline=1000, timeout=1000)
        try:
            print("waiting", flush=True)
            db.topic("t").append(1)
        except KeyboardInterrupt:
            print("heard", flush=True)
        """
    assert interrupted(program, "http://127.0.0.1:1") == "heard\n"
    with in_front_of(server.port) as faulty:
        faulty.fail(Hang(3600))
        assert interrupted(program, faulty.url) == "heard\n"


def test_a_forked_child_is_told_and_touches_nothing(server: Server) -> None:
    program = """
        import gc, os, sys, time, topics_engine as te
        db = te.connect(sys.argv[1], heartbeat=1)
        t, jobs = db.topic("forked"), db.queue("forked-jobs")
        t.append([1] * 3000)
        watch, work, read = db.watch({"forked": 2999}), jobs.work("w"), t.read()
        assert watch.next(wait=60).seq == 3000
        consumer = t.consumer("c")
        next(read)
        child = os.fork()
        if child == 0:
            began = time.monotonic()
            calls = [lambda: t.append(2), lambda: list(t.read()), t.state, db.sync, watch.next]
            calls += [lambda: next(work), lambda: list(read), consumer.read, lambda: t.wait(9)]
            for call in calls:
                try:
                    call()
                except te.Closed as error:
                    assert "fork" in str(error), error
                else:
                    sys.exit(8)
            assert db.closed
            watch.close(), work.close(), read.close(), db.close()
            del watch, work, read, consumer, t, jobs, db, calls
            gc.collect()
            print(time.monotonic() - began, flush=True)
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert not db.closed
        t.append(2)
        assert watch.next(wait=60).seq == 3001
        jobs.append("job")
        assert next(work).data == "job"
        assert len(list(read)) == 2999
        streams = db.metrics()["watch_streams"]
        assert streams == 1, streams
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), server.url],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    figure("the calls of a forked child", float(done.stdout), below=5, unit="s")


def test_a_program_that_closes_nothing_ends(server: Server) -> None:
    program = """
        import contextlib, sys, threading, topics_engine as te
        db = te.connect(sys.argv[1])
        t, jobs = db.topic("ends"), db.queue("ends-jobs")
        t.append([0] * 3000)
        watch, work, read = db.watch({"ends": 2999}), jobs.work("w"), t.read()
        assert watch.next(wait=60).seq == 3000
        next(read)
        waits = [lambda: t.wait(9999), lambda: next(work), lambda: jobs.claim("v", wait=1000)]
        def until_closed(wait):
            with contextlib.suppress(te.Closed):
                wait()
        for wait in waits:
            threading.Thread(target=until_closed, args=(wait,), daemon=True).start()
        """
    command = [sys.executable, "-c", textwrap.dedent(program), server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


ROUNDS = 1000
GROWTH = 64 << 10
"""Bytes that the client may have more of after so many attempts than after the first few."""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["nobody", "broken", "refused"])
async def test_who_retries_for_long_holds_no_more(
    faulty: Faulty, connect: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    from topics_engine.remote import caller

    attempts = 0

    def pause(_: float, longest: float) -> float:
        nonlocal attempts
        attempts += 1
        return 0.0005

    monkeypatch.setattr(caller.random, "uniform", pause)
    monkeypatch.setattr(caller, "FIRST_PAUSE", 0.0005)
    monkeypatch.setattr(caller, "LONGEST_PAUSE", 0.0005)
    fault = Break() if what == "broken" else Refuse(503, {}, b'{"error":{}}')
    # What is recorded of requests would be the growth.
    faulty.matching, faulty.always = "/", fault
    url = "http://127.0.0.1:1" if what == "nobody" else faulty.url
    async with connect(url, deadline=0.5) as db:

        async def attempt(count: int) -> None:
            until = attempts + count
            while attempts < until:
                with pytest.raises(te.Unavailable):
                    await db.topic("t").append(1)

        # An attempt that the deadline cuts off closes its connection: one look may find none.
        held = 0
        for _ in range(5):
            await attempt(40)
            gc.collect()
            held = max(held, descriptors())
        tracemalloc.start()
        try:
            await attempt(ROUNDS // 10)
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            await attempt(ROUNDS)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        figure(f"growth over {ROUNDS} attempts", after - before, below=GROWTH, unit="bytes")

        async def back() -> bool:
            gc.collect()
            return descriptors() <= held

        await eventually(back)


async def test_a_watch_that_comes_back_for_long_holds_no_more(faulty: Faulty, connect: Any) -> None:
    threads = threading.active_count()
    async with connect(faulty.url, heartbeat=1) as db:
        await db.topic("back").append(0)
        async with db.watch({"back": 0}) as watch:
            assert (await watch.next(wait=60)).seq == 1
            await eventually(lambda: settled(threads + 40))
            held = descriptors()
            for n in range(100):
                faulty.break_streams()
                await db.topic("back").append(n)
                assert (await watch.next(wait=60)).seq == n + 2

            async def back() -> bool:
                gc.collect()
                # A stream is a descriptor here, and two of the proxy's.
                return descriptors() <= held + 3

            await eventually(back)

            async def one_reader() -> bool:
                return sum(t.name == "topics-stream" for t in threading.enumerate()) <= 1

            await eventually(one_reader)


async def settled(most: int) -> bool:
    return threading.active_count() <= most


async def test_a_pool_keeps_as_many_connections_as_it_is_told(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio

    async with te.aio.connect(server.url, pool=3) as db:
        t = db.topic("pool")
        await t.append(0)
        held = descriptors()
        await asyncio.gather(*(t.append(n) for n in range(50)), *(t.state() for _ in range(50)))
        assert descriptors() - held <= 6
    with te.connect(server.url, pool=3) as sync:
        topic = sync.topic("pool")
        held = descriptors()
        threads = [
            threading.Thread(target=verb, daemon=True)
            for _ in range(15)
            for verb in (
                lambda: topic.wait(9999, timeout=0.3),
                topic.state,
                lambda: topic.append(1),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert descriptors() - held <= 9, "three of each kind that was used"
        assert caplog.records == []
