"""Workers in processes of their own, through everything that the guide for workers is about."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import topics_engine as te
from support.server import Server
from support.waiting import until

JOBS = 150
DEADLINE = 240.0
# The runs of jobs are lines of one file. A job of three leases' length is in a queue of its own.
WORKER = """
import asyncio, os, sys
import topics_engine as te

url, runs, name = sys.argv[1:]
out = os.open(runs, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def short(job):
    os.write(out, f"{job.data}\\n".encode())
    await asyncio.sleep(0.05)
    if job.data == "poison":
        raise ValueError("it always fails")

async def long(job):
    os.write(out, f"{job.data}\\n".encode())
    await asyncio.sleep(3 * job.lease)
    os.write(out, b"the long job is done\\n")

async def main():
    async with te.aio.connect(url) as db:
        shorts, longs = await db.queue("short"), await db.queue("long")
        stop = asyncio.create_task(shorts.run(short, worker=name, concurrency=4))
        slow = asyncio.create_task(longs.run(long, worker=name, concurrency=1))
        await stop
        longs.stop()
        await slow

asyncio.run(main())
"""


class Worker:
    """A process that works on both queues until SIGTERM."""

    def __init__(self, server: Server, runs: Path, name: str) -> None:
        command = [sys.executable, "-c", WORKER, server.url, str(runs), name]
        self.process = subprocess.Popen(command)

    def stop(self) -> None:
        """Sends SIGTERM, and waits for its end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE) == 0


def test_no_job_is_lost_or_runs_twice(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.touch()
    workers: list[Worker] = []

    def seen() -> Counter[str]:
        return Counter(runs.read_text().splitlines())

    with Server(tmp_path / "data") as server, te.connect(server.url) as db:
        options = {"durability": "fsync", "leases_durable": True, "retry_backoff": 0}
        shorts = db.queue("short", lease="60s", max_deliveries=3, dead_letter="dead", **options)  # type: ignore[misc]
        longs = db.queue("long", lease="4s", **options)  # type: ignore[misc]
        longs.append("long")
        shorts.append(["poison", *map(str, range(JOBS))])
        try:
            workers += [Worker(server, runs, name) for name in ("first", "second")]
            for count in (JOBS // 5, JOBS // 2):
                until(lambda count=count: seen().total() >= count, DEADLINE)
                assert server.stop() == 0
                server.start()
            until(lambda: seen().total() >= JOBS * 3 // 5, DEADLINE)
            workers[0].stop()
            until(lambda: seen()["the long job is done"] > 0, DEADLINE)
            until(lambda: shorts.state().count + longs.state().count == 0, DEADLINE)
            workers[1].stop()
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()
        once = Counter({str(n): 1 for n in range(JOBS)})
        others = Counter({"poison": 3, "long": 1, "the long job is done": 1})
        assert seen() == once + others
        (letter,) = db.topic("dead").read(gaps="raise")
        assert isinstance(letter, te.Record)
        assert letter.meta is not None
        assert letter.meta["$dead_letter_error"] == "ValueError: it always fails"
