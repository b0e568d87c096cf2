"""Forks, signal handlers, the end of the interpreter, and loggers that write to a topic."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import topics_engine as te
from support.gate import sized
from support.processes import LIMIT
from support.server import Server


def run(code: str, *args: object) -> str:
    """The output of a program that must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_a_forked_child_opens_nothing_and_is_told_of_spawn(tmp_path: Path) -> None:
    """Threads of the parent wait for locks and take them while it forks."""
    children = sized(20, 200, 1000)
    said = run(
        """
        import collections, os, signal, sys, threading, topics_engine as te
        base, children = sys.argv[1], int(sys.argv[2])
        db = te.open(f"{base}/parent")
        topic = db.topic("t", durability="fsync")
        def busy():
            while True:
                topic.append(1)
        for _ in range(2):
            threading.Thread(target=busy, daemon=True).start()
        def work():
            open_here = lambda: te.open(f"{base}/child")
            calls = [open_here, lambda: te.verify(f"{base}/parent"), lambda: te.open(":memory:")]
            for call in calls:
                try:
                    call()
                except te.Closed as error:
                    assert "spawn" in str(error), error
                else:
                    return 8
            return 7
        ends = collections.Counter()
        for n in range(children):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os._exit(work())
            ends[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
        print(dict(ends), os.path.exists(f"{base}/child"), flush=True)
        os._exit(0)
        """,
        tmp_path,
        children,
    )
    assert said == f"{{7: {children}}} False\n"


OWNER = """
    import os, signal, sys, topics_engine as te
    db = te.open(sys.argv[1])
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, b"-")
        signal.pause()
    os.read(ready, 1)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """


def test_a_forked_child_keeps_no_lock(data_dir: Path) -> None:
    """Neither after the close of its parent nor after its death."""
    said = run(
        """
        import os, signal, subprocess, sys, topics_engine as te
        path = sys.argv[1]
        def forked():
            child = os.fork()
            if child == 0:
                signal.pause()
            return child
        db = te.open(path)
        children = [forked()]
        db.topic("t").append(1)
        db.close()
        db = te.open(path)
        seen, told = os.pipe()
        owner = subprocess.run([sys.executable, "-c", sys.argv[2], path + "-2"], stdout=told)
        assert owner.returncode == -signal.SIGKILL
        children.append(int(os.read(seen, 20)))
        te.open(path + "-2").close()
        db.close()
        for child in children:
            os.kill(child, signal.SIGKILL)
        print("opened", flush=True)
        """,
        data_dir,
        textwrap.dedent(OWNER),
    )
    assert said == "opened\n"


def test_a_handle_keeps_its_database_in_memory_alive() -> None:
    said = run(
        """
        import gc, os, topics_engine as te
        topic = te.open(":memory:").topic("a")
        gc.collect()
        assert topic.append(1).first_seq == 1
        assert te.open(":memory:").topic("a").append([1, 2]).last_seq == 2
        where = topic._backend.path
        assert os.path.isdir(where)
        del topic
        gc.collect()
        assert not os.path.exists(where)
        """
    )
    assert said == ""


@pytest.mark.parametrize("name", ["db", "topic"])
def test_the_end_of_the_program_ends_a_database_in_memory(name: str) -> None:
    """`run` looks at stderr: nothing is said."""
    where = run(
        """
        import sys, threading, topics_engine as te
        db = te.open(":memory:", checkpoint_interval_ms=10)
        topic = db.topic("t")
        topic.append(1)
        print(db.path, flush=True)
        del globals()[{"db": "topic", "topic": "db"}[sys.argv[1]]]
        """,
        name,
    )
    assert not Path(where.strip()).exists()


CLOSED_BY_A_HANDLER = """
    import os, random, signal, sys, threading, topics_engine as te
    where, delay = sys.argv[1], float(sys.argv[2])
    db = te.connect(where) if where.startswith("http") else te.open(where)
    def close(*_):
        db.close()
        os.write(1, b"closed")
        os._exit(0)
    signal.signal(signal.SIGALRM, close)
    topic = db.topic("t")
    topic.append(1)
    signal.setitimer(signal.ITIMER_REAL, delay)
    while True:
        topic.append(2)
        topic.tail(2)
    """


@pytest.mark.parametrize("kind", ["embedded", "server"])
def test_a_signal_handler_closes(kind: str, server: Server, tmp_path: Path) -> None:
    """Whatever it interrupts: the moments of this many runs are spread over many calls."""
    runs = sized(4, 200, 200)
    for n in range(runs):
        where = server.url if kind == "server" else tmp_path / str(n)
        assert run(CLOSED_BY_A_HANDLER, where, 0.02 + n * 0.00037) == "closed"


def test_a_signal_handler_closes_while_the_pool_is_locked(server: Server) -> None:
    """The pool of connections takes a lock that the interrupted code holds."""
    program = """
        import os, queue, signal, sys, topics_engine as te
        db = te.connect(sys.argv[1])
        topic = db.topic("t")
        topic.append(1)
        ends = sys.argv[2] == "ends"
        def close(*_):
            db.close()
            os.write(1, b"closed")
            if ends:
                os._exit(0)
        signal.signal(signal.SIGTERM, close)
        size = queue.LifoQueue._qsize
        def interrupted(self):
            queue.LifoQueue._qsize = size
            signal.raise_signal(signal.SIGTERM)
            return size(self)
        queue.LifoQueue._qsize = interrupted
        try:
            topic.append(2)
            topic.append(3)
        except te.Closed:
            os.write(1, b", and calls say so")
        """
    assert run(program, server.url, "ends") == "closed"
    assert run(program, server.url, "goes on") == "closed, and calls say so"


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_signal_handler_stops_a_run_of_another_thread(kind: str, data_dir: Path) -> None:
    """As the guide for workers has it; a run of the main thread needs none."""
    code = """
        import asyncio, os, signal, sys, threading, topics_engine as te

        begun, told = threading.Event(), threading.Event()

        def work():
            jobs = te.open(sys.argv[2]).queue("jobs")
            jobs.append([1, 2])

            def handle(job):
                begun.set()
                assert told.wait(60)
                print("did", job.data)

            stops.append(jobs.stop)
            jobs.run(handle, worker="w", concurrency=1)
            print("ready", jobs.state().queue["ready"])

        async def aio_work():
            async with te.aio.open(sys.argv[2]) as db:
                jobs, loop = await db.queue("jobs"), asyncio.get_running_loop()
                await jobs.append([1, 2])

                async def handle(job):
                    begun.set()
                    while not told.is_set():
                        await asyncio.sleep(0.001)
                    print("did", job.data)

                stops.append(lambda: loop.call_soon_threadsafe(jobs.stop))
                await jobs.run(handle, worker="w", concurrency=1)
                print("ready", (await jobs.state()).queue["ready"])

        def stop(*_):
            stops[0]()
            told.set()

        stops = []
        target = work if sys.argv[1] == "sync" else lambda: asyncio.run(aio_work())
        worker = threading.Thread(target=target)
        signal.signal(signal.SIGTERM, stop)
        worker.start()
        assert begun.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
        while worker.is_alive():
            worker.join(1)
    """
    assert run(code, kind, data_dir) == "did 1\nready 1\n"


def test_a_signal_handler_closes_while_the_thread_of_renewals_is_woken(server: Server) -> None:
    """At each line of it."""
    program = """
        import os, signal, sys, topics_engine as te
        from topics_engine.remote.renewal import LeaseRenewer
        db = te.connect(sys.argv[1])
        queue = db.queue("renewed")
        queue.append([1, 2])
        jobs = queue.claim("w", lease="60s")
        def close(*_):
            db.close()
            os.write(1, b"closed")
            os._exit(0)
        signal.signal(signal.SIGTERM, close)
        left = int(sys.argv[2])
        def trace(*_):
            global left
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGTERM)
            return trace
        wake = LeaseRenewer._wake
        def traced(*arguments):
            sys.settrace(trace)
            wake(*arguments)
            sys.settrace(None)
        LeaseRenewer._wake = traced
        jobs += queue.claim("w", lease="1s")
        os.write(1, b"claimed %d" % len(jobs))
        os._exit(0)
        """
    outputs = []
    while outputs[-1:] in ([], ["closed"]):
        outputs.append(run(program, server.url, len(outputs) + 1))
    assert outputs[-1] == "claimed 2"
    assert len(outputs) > 5


def test_a_logger_may_write_to_a_topic_of_a_server(server: Server) -> None:
    """At the level DEBUG of the root logger: what the client's transport does is not logged."""
    program = """
        import logging, sys, topics_engine as te, urllib3
        db = te.connect(sys.argv[1])
        topic = db.topic("logs")
        class ToTopic(logging.Handler):
            def emit(self, record):
                topic.append({"logger": record.name, "text": record.getMessage()})
        logging.basicConfig(level=logging.DEBUG, handlers=[ToTopic()])
        logging.getLogger("app").info("hello")
        urllib3.PoolManager().request("GET", sys.argv[1] + "/healthz")
        print(sorted({r.data["logger"] for r in topic.read()}))
        """
    loggers = run(program, server.url).strip()
    assert loggers == str(["app", "urllib3.connectionpool"])


def test_a_lock_says_whose_it_is(data_dir: Path) -> None:
    with te.open(data_dir), pytest.raises(te.Locked) as mine:
        te.open(data_dir)
    assert str(mine.value) == (
        f"{data_dir} is open in process {os.getpid()}, which is this one: use that handle, or "
        "close it first"
    )
    ended = te.errors.from_native("locked", "/d is open in process 999999999", '{"pid": 999999999}')
    assert str(ended).endswith(
        "which has ended: end the processes that it started, one of them keeps the lock"
    )


def test_repeats_are_logged_without_recursion() -> None:
    """No server is there: each write of the handler fails, after repeats of its own."""
    program = """
        import logging, sys, topics_engine as te
        db = te.connect("http://127.0.0.1:1", deadline=0.3)
        said = []
        class ToTopic(logging.Handler):
            def emit(self, record):
                said.append(record.name)
                try:
                    db.topic("logs").append(record.getMessage())
                except te.Unreachable:
                    pass
        logging.basicConfig(level=logging.DEBUG, handlers=[ToTopic()])
        try:
            db.topic("t").append(1)
        except te.Unreachable:
            print(set(said))
        """
    assert run(program) == "{'topics_engine.remote'}\n"
