"""Prints the rate of Spark reads of an object store with 1, 2 and 4 executors, and of its packs
read by as many processes without an engine.

python -m bench.bucket [--rows N] [--url URL]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pyspark_topics.directory import backend

import topics_engine as te

from .measure import SOURCE, discard, median_of, nothing, print_result

HERE = Path(__file__).resolve().parents[1]
ROWS = 10_000_000
BATCH = 10_000
EXECUTORS = (1, 2, 4)
TASKS = 16
"""The minimum of tasks, the same for each number of executors."""
GOAL = 3.0
"""The rate of 4 executors, in rates of one."""


def fill(directory: Path, url: str, rows: int) -> None:
    """Records of about 100 bytes, all but the last ones in sealed segments of a base."""
    pad = "x" * 84
    with te.open(directory, remote_url=url, remote_base_interval_ms=1000) as db:
        topic = db.topic(SOURCE)
        for at in range(0, rows, BATCH):
            topic.append([{"n": n, "p": pad} for n in range(at, min(at + BATCH, rows))])
        db.checkpoint()
    # What the first process has left becomes part of a base.
    with te.open(directory, remote_url=url) as db:
        while db.metrics()["remote_last_base_timestamp_seconds"] == 0:
            time.sleep(0.05)


def sealed(url: str) -> int:
    """The last record of the sealed segments of the newest base."""
    engine = backend(url, sealed=True)
    try:
        return int(json.loads(engine.state(SOURCE))["head_seq"])
    except te.NotFound:
        return 0
    finally:
        engine.close()


def measure(executors: int, url: str, rows: int) -> None:
    """One session: a process of its own, because a JVM has one."""
    from local_spark import session

    spark = session("bucket", master=f"local-cluster[{executors},1,1024]")
    reader = spark.read.format("topics").schema("seq long, data string")

    def read() -> None:
        discard(reader.load(path=url, subscribe=SOURCE, minPartitions=str(TASKS)))

    print_result("read", rows_per_s=median_of(read, rows, nothing))
    spark.stop()


def _read_packs(packs: list[Path]) -> int:
    return sum(len(pack.read_bytes()) for pack in packs)


def raw(folder: Path, processes: int, rows: int) -> float:
    """Records per second, in the bytes of the packs."""
    packs = sorted(folder.glob("*/p*"))
    shares = [packs[i::processes] for i in range(processes)]
    with ProcessPoolExecutor(processes) as pool:

        def read() -> None:
            assert sum(pool.map(_read_packs, shares)) > 0

        return median_of(read, rows, nothing)


def rate_of(executors: int, url: str, rows: int) -> float:
    command = [sys.executable, "-m", "bench.bucket", "--rows", str(rows), "--url", url]
    command += ["--executors", str(executors)]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return float(json.loads(line)["rows_per_s"])


def compare(url: str, rows: int, folder: Path | None) -> None:
    one = 0.0
    for executors in EXECUTORS:
        rate = rate_of(executors, url, rows)
        one = one or rate
        text = f"{executors} executor{'s' * (executors > 1)}"
        text = f"read from an object store, {text:12}{rate / 1e6:7.2f} M rows/s"
        text += f"   {rate / one:4.2f} x one"
        if executors == EXECUTORS[-1]:
            text += f", goal {GOAL:g}"
        if folder is not None:
            limit = raw(folder, executors, rows)
            text += f"   packs read {limit / 1e6:7.2f} M rows/s, {rate / limit:.2f} of it"
        print(text, flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=ROWS)
    arguments.add_argument("--url", help="an empty prefix; a temporary folder unless given")
    arguments.add_argument("--executors", type=int, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.executors is not None:
        measure(given.executors, given.url, given.rows)
        return
    with tempfile.TemporaryDirectory(prefix="topics-spark-") as name:
        folder = None if given.url else Path(name, "store")
        url = given.url or Path(name, "store").as_uri()
        fill(Path(name, "data"), url, given.rows)
        print(
            f"{given.rows} records, {sealed(url) / given.rows:.0%} in sealed segments", flush=True
        )
        compare(url, given.rows, folder)


if __name__ == "__main__":
    main()
