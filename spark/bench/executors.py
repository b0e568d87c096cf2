"""Prints rates of Spark with 1, 2 and 3 executors, and the CPU time of the server: of a read of
typed columns, of a copy into another topic, and of the pipeline's job without kills.

python -m bench.executors [--rows N] [--days N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pipeline.dataset import Row, dataset
from pipeline.feed import append, plain
from pipeline.job import RESULTS
from pipeline.progress import last_batch
from pipeline.runner import Job, on_cluster
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

import topics_engine as te
from support.server import Server

from .bucket import BATCH, HERE
from .cpu import cpu_seconds
from .measure import SOURCE, TIMES, discard, median_of, nothing, print_result

EXECUTORS = (1, 2, 3)
TASKS = 12
"""Tasks of a read, the same for each number of executors."""
BATCHES = 8
"""Micro-batches of the pipeline's job."""


def cluster(executors: int) -> str:
    return f"local-cluster[{executors},1,1024]"


def measure(executors: int, url: str, pid: int, rows: int) -> None:
    """One session: a process of its own, because a JVM has one."""
    from local_spark import session

    spark = session("executors", master=cluster(executors))
    reader = spark.read.format("topics").options(url=url, subscribe=SOURCE, minPartitions=TASKS)
    client = Client(Connection(url, None, None, 30.0))

    def read() -> None:
        discard(reader.option("fields", "n long, p string").load())

    def copy() -> None:
        frame = reader.schema("data string").load()
        frame.write.format("topics").mode("append").save(url=url, topic="copy")

    for name, work, before in (
        ("read", read, nothing),
        ("copy", copy, lambda: client.call("DELETE", "/v0/topics/copy")),
    ):
        begun = cpu_seconds(pid)
        rate = median_of(work, rows, before)
        cpu = (cpu_seconds(pid) - begun) / (TIMES + 1) / rows * 1e6
        print_result(name, rows_per_s=rate, cpu=cpu)
    spark.stop()


def rates_of(executors: int, server: Server, rows: int) -> None:
    command = [sys.executable, "-m", "bench.executors", "--rows", str(rows), "--url", server.url]
    command += ["--pid", str(server.pid), "--executors", str(executors)]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            show(found["name"], executors, found["rows_per_s"], found["cpu"])


def stream(executors: int, folder: Path, rows: dict[str, list[Row]]) -> None:
    """The pipeline's job, from the plan of its first batch to the commit of its last."""
    total = sum(len(found) for found in rows.values())
    limits = {topic: -(-len(found) // BATCHES) for topic, found in rows.items()}
    with Server(folder / "data") as server:
        client = Client(Connection(server.url, None, None, 30.0))
        for topic, found in rows.items():
            for _ in append(client, topic, [plain(row) for row in found]):
                pass
        begun = cpu_seconds(server.pid)
        options = on_cluster(cluster(executors), folder)
        with Job(server.url, folder, limits, options=options) as job:
            job.finish()
        cpu = (cpu_seconds(server.pid) - begun) / total * 1e6
    checkpoint = folder / "checkpoints" / RESULTS
    last = checkpoint / "commits" / str(last_batch(checkpoint / "commits"))
    took = last.stat().st_mtime - (checkpoint / "offsets" / "0").stat().st_mtime
    show("pipeline", executors, total / took, cpu)


def show(name: str, executors: int, rate: float, cpu: float) -> None:
    text = f"{executors} executor{'s' * (executors > 1)}"
    print(
        f"{name:10}{text:12}{rate / 1e6:7.3f} M rows/s   server {cpu:5.2f} CPU s per million rows",
        flush=True,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=2_000_000, help="of reads and copies")
    arguments.add_argument("--days", type=int, default=365, help="of the pipeline's year")
    for name, kind in (("--executors", int), ("--url", str), ("--pid", int)):
        arguments.add_argument(name, type=kind, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.executors is not None:
        measure(given.executors, given.url, given.pid, given.rows)
        return
    with tempfile.TemporaryDirectory(prefix="topics-spark-") as name:
        data = Path(name, "data")
        with te.open(data) as db:
            topic = db.topic(SOURCE)
            for at in range(0, given.rows, BATCH):
                topic.append([{"n": n, "p": "x" * 84} for n in range(at, at + BATCH)])
        with Server(data) as server:
            for executors in EXECUTORS:
                rates_of(executors, server, given.rows)
        rows = dataset(given.days)
        for executors in EXECUTORS:
            folder = Path(name, str(executors))
            folder.mkdir()
            stream(executors, folder, rows)


if __name__ == "__main__":
    main()
