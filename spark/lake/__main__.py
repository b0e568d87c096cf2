"""Runs the whole example with kills at random moments, and compares the tables with pandas.

python -m lake [--days N] [--seed N]
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.dataset import dataset
from pipeline.progress import Progress, last_batch, progress
from pipeline.runner import (
    HERE,
    JOB_TIMEOUT,
    LONGEST_DELAY,
    TRIGGERS,
    Job,
    planned_kills,
    run_with_kills,
)
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from support.server import Server

from .compare import compare_letters, compare_table, letters
from .dataset import expected, record
from .delta import path
from .environment import DELTA, ICEBERG, Unavailable, environment
from .job import TOPIC
from .maintain import ALL

UNAVAILABLE = 3
"""The exit code if Spark or a jar cannot be downloaded."""


def slowest(folder: Path) -> Progress:
    """The progress of the stream of the first job that has processed the fewest rows."""
    found = [progress(folder / "checkpoints" / name) for name in ("delta", "dead")]
    return min(found, key=lambda query: query.rows)


def versions(folder: Path) -> int:
    """The number of commits to the Delta table, from the files of its log. The first creates it."""
    return len([*Path(path(folder)).glob("_delta_log/*.json")]) - 1


def forget_last_commit(checkpoint: Path) -> int:
    """Leaves a checkpoint as a kill does between the commit of a batch to its sink and the record
    of it. Returns the number of the batch, which the next start repeats."""
    planned, done = (last_batch(checkpoint / log) for log in ("offsets", "commits"))
    if planned != done:
        raise SystemExit(f"{checkpoint}: batch {planned} is not finished")
    (checkpoint / "commits" / str(done)).unlink()
    (checkpoint / "commits" / f".{done}.crc").unlink(missing_ok=True)
    return done


def to_iceberg(folder: Path, url: str, total: int, seed: int, env: dict[str, str]) -> list[str]:
    """Runs the second job, kills it twice at random moments, and lets it finish. Returns the
    problems."""
    wrong = []
    rng = random.Random(seed)
    limits = {TOPIC: -(-total // TRIGGERS)}
    checkpoint = folder / "checkpoints" / "iceberg"
    for share in sorted(rng.uniform(0.1, 0.6) for _ in range(2)):
        with Job(url, folder, limits, "lake.iceberg", env) as job:
            until = time.monotonic() + JOB_TIMEOUT
            while progress(checkpoint).rows < share * total:
                job.check()
                if time.monotonic() > until:
                    raise SystemExit(f"the job made no progress within {JOB_TIMEOUT:g} s")
                time.sleep(0.01)
            time.sleep(rng.uniform(0, LONGEST_DELAY / 2))
            job.check()
            job.signal(signal.SIGSTOP)
            done = progress(checkpoint).rows
            print(f"killed in writing to Iceberg, {done} of {total} rows done", flush=True)
            job.kill()
        if not 0 < done < total:
            wrong.append(f"a kill was not in time: {done} of {total} rows done")
    with Job(url, folder, limits, "lake.iceberg", env) as job:
        job.finish()
    return wrong


def maintain(folder: Path, url: str, envs: dict[str, dict[str, str]]) -> list[str]:
    """Compacts both tables, while the streams have a batch that they repeat. Returns the
    problems."""
    wrong = []
    programs = {
        "delta": ["lake.maintain", url, str(folder)],
        "iceberg": ["lake.iceberg", url, str(folder), f"{TOPIC}={ALL}"],
    }
    repeated = {
        name: forget_last_commit(folder / "checkpoints" / name)
        for name in ("delta", "dead", "iceberg")
    }
    for name, arguments in programs.items():
        output = folder / "output" / name
        output.mkdir(parents=True)
        command = [sys.executable, "-m", *arguments, str(output)]
        with (folder / "maintain.log").open("a") as log:
            subprocess.run(
                command, cwd=HERE, check=True, stderr=log, timeout=JOB_TIMEOUT, env=envs[name]
            )
    for name, batch in repeated.items():
        if last_batch(folder / "checkpoints" / name / "commits") < batch:
            wrong.append(f"{name}: batch {batch} was not repeated")
    return wrong


def run(folder: Path, days: int | None, seed: int) -> list[str]:
    """One run; returns the problems."""
    envs = {"delta": environment(DELTA), "iceberg": environment(ICEBERG)}
    rows = dataset(days)[TOPIC]
    wanted, dead = expected(rows)
    kinds = ", ".join(sorted(set(dead.values())))
    print(f"seed {seed}: {len(rows)} records, {len(dead)} of them dead letters ({kinds})")
    with Server(folder / "data") as server:
        _, wrong = run_with_kills(
            server.url,
            {TOPIC: rows},
            planned_kills(seed),
            lambda limits: Job(server.url, folder, limits, "lake.job", envs["delta"]),
            lambda: slowest(folder),
            lambda: versions(folder),
            record,
        )
        wrong += to_iceberg(folder, server.url, len(rows), seed, envs["iceberg"])
        wrong += maintain(folder, server.url, envs)
        found = letters(Client(Connection(server.url, None, None, 60.0)))
    for name in envs:
        wrong += compare_table(name, folder / "output" / name, wanted)
    return wrong + compare_letters(found, rows, dead)


def missing_jars(log: Path) -> list[str]:
    """What Spark could not download, if that is why the job has ended."""
    if not log.exists():
        return []
    lines = log.read_text(errors="replace").splitlines()
    return [line.strip() for line in lines if "unresolved dependency" in line]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--days", type=int, help="of the year; all of it unless given")
    arguments.add_argument("--seed", type=int, help="of the kills; random unless given")
    given = arguments.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="topics-lake-"))
    started = time.monotonic()
    wrong = ["it did not end"]
    try:
        wrong = run(folder, given.days, seed)
    except Unavailable as e:
        wrong = []
        print(f"a download failed: {e}")
        return UNAVAILABLE
    except SystemExit:
        if not (missing := missing_jars(folder / "job.log")):
            raise
        wrong = []
        print(f"a download failed: {missing[0]}")
        return UNAVAILABLE
    finally:
        if wrong:
            print(f"seed {seed}: the logs and the tables are in {folder}")
        else:
            shutil.rmtree(folder)
    for line in wrong:
        print(f"WRONG: {line}")
    if not wrong:
        took = time.monotonic() - started
        print(f"both tables equal pandas, each row once; {took:.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
