"""Runs the whole pipeline with kills at random moments, and compares the result with pandas.

python -m pipeline [--master MASTER] [--output DIR] [--days N] [--seed N] [--runs N]
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
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from support.server import Server

from .archive import archive, bytes_fetched, settings
from .dataset import YEAR, Row, dataset, first_year
from .expected import Dead, expected
from .job import DEAD, RESULTS
from .progress import progress
from .report import PLOT
from .runner import (
    HERE,
    JOB_TIMEOUT,
    Job,
    KillPoint,
    Victim,
    on_cluster,
    planned_kills,
    run_with_kills,
)

LAST_KILL = 0.8
"""The share of processed rows before which the last kill is due while rows are still fed. The
archive has two thirds of all rows."""
TRIGGERS = 30
DOWN = 2.0
"""Seconds that a killed server is away."""


def heads(client: Client, *topics: str) -> int:
    """The number of records that were ever published in the topics."""
    found = client.call("POST", "/v0/state", {"topics": list(topics)})["topics"]
    return sum(int(state["head_seq"]) for state in found.values())


def stream(
    server: Server,
    folder: Path,
    rows: dict[str, list[Row]],
    archived: dict[str, int],
    seed: int,
    master: str | None,
) -> tuple[list[KillPoint], list[str]]:
    """Feeds and runs the job with kills. Returns the kills and the problems."""
    client = Client(Connection(server.url, None, None, 60.0))
    options = on_cluster(master, folder) if master else []

    # Each process of the server counts its own.
    fetched: list[int] = []

    def restart_server(job: Job) -> None:
        fetched.append(bytes_fetched(client))
        server.kill()
        job.signal(signal.SIGCONT)
        time.sleep(DOWN)
        server.start()

    others: dict[Victim, Callable[[Job], None]] = {
        "server": restart_server,
        "worker": lambda job: job.kill_one("pyspark.daemon pyspark.worker"),
    }
    if master and master.startswith("local-cluster["):
        others["executor"] = lambda job: job.kill_one("CoarseGrainedExecutorBackend")
    points, wrong = run_with_kills(
        server.url,
        rows,
        planned_kills(seed, [*others], LAST_KILL),
        lambda per_trigger: Job(server.url, folder, per_trigger, options=options),
        lambda: progress(folder / "checkpoints" / RESULTS),
        partial(heads, client, RESULTS, DEAD),
        triggers=TRIGGERS,
        archived=archived,
        others=others,
    )
    fetched.append(bytes_fetched(client))
    print(f"{sum(fetched) / 1e6:.0f} MB were fetched from the archive")
    if not sum(fetched):
        wrong.append("nothing was fetched from the archive")
    return points, wrong


def compare(output: Path, hours: pd.DataFrame, dead: list[Dead]) -> list[str]:
    """The differences."""
    found = pd.read_parquet(output / f"{RESULTS}.parquet")
    wrong = []
    if found.duplicated(["origin", "hour"]).any():
        wrong.append("an hour of an airport is there twice")
    found = found.sort_values(["origin", "hour"], ignore_index=True)
    try:
        # An hour without departures has no delays; in SQL, a sum over no rows is null.
        ours = found.fillna({"delay_sum": 0.0})
        pd.testing.assert_frame_equal(ours, hours[found.columns], check_exact=True)
    except AssertionError as e:
        wrong.append(f"delays: {e}")
    letters = pd.read_parquet(output / f"{DEAD}.parquet")
    got = sorted(letters[["reason", "topic", "seq"]].itertuples(index=False, name=None))
    if got != dead:
        odd = set(got) ^ set(dead)
        wrong.append(f"{len(got)} dead letters, not {len(dead)}: {sorted(odd)[:5]}")
    if not (output / PLOT).stat().st_size:
        wrong.append("the plot is empty")
    return wrong


def run(
    folder: Path, output: Path, days: int, seed: int, master: str | None
) -> tuple[str, list[str]]:
    """One run; returns a row of the table, and the problems."""
    started = time.monotonic()
    rows = dataset(days, again=days // 2)
    archived = first_year(rows)
    hours, dead = expected(rows)
    shown = ", ".join(f"{len(found)} rows of {topic}" for topic, found in rows.items())
    print(f"seed {seed}: {shown}; {len(hours)} hours and {len(dead)} dead letters are expected")
    server = Server(folder / "data", **settings(folder / "archive", archived))
    server.start()
    try:
        client = Client(Connection(server.url, None, None, 60.0))
        cold = archive(server, client, rows, archived)
        print(
            ", ".join(
                f"{cold[t]} of {n} archived rows of {t} are cold" for t, n in archived.items()
            )
        )
        points, wrong = stream(server, folder, rows, archived, seed, master)
        command = [sys.executable, "-m", "pipeline.report", server.url, str(folder), str(output)]
        with (folder / "report.log").open("w") as log:
            subprocess.run(command, cwd=HERE, check=True, stderr=log, timeout=JOB_TIMEOUT)
        wrong += compare(output, hours, dead)
    finally:
        server.ensure_dead()
    for line in wrong:
        print(f"WRONG: {line}")
    if not wrong:
        print(f"equal to pandas, each row once; plot and Parquet in {output}")
    total = sum(len(found) for found in rows.values())
    kills = " ".join(f"{p.victim[0]}{p.query.rows * 100 // total}%" for p in points)
    took = time.monotonic() - started
    verdict = "WRONG" if wrong else "equal to pandas"
    return f"{seed:12} {kills:30} {verdict:16} {took:5.0f} s", wrong


def clear(output: Path) -> None:
    """Removes the results of earlier runs, so that they cannot count for this one."""
    for old in (f"{RESULTS}.parquet", f"{DEAD}.parquet"):
        shutil.rmtree(output / old, ignore_errors=True)
    (output / PLOT).unlink(missing_ok=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--output", type=Path, default=HERE.parent / "target/pipeline", help="for plot and Parquet"
    )
    arguments.add_argument(
        "--master",
        help="of this machine, for example local-cluster[3,1,1024]; local[2] unless given",
    )
    arguments.add_argument(
        "--days", type=int, default=YEAR.days, help="of the archived year; all of it unless given"
    )
    arguments.add_argument("--seed", type=int, help="of the first run's kills; random unless given")
    arguments.add_argument("--runs", type=int, default=1, help="each with the next seed")
    given = arguments.parse_args()
    first = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    output = given.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    table, failed = [], False
    for seed in range(first, first + given.runs):
        clear(output)
        folder = Path(tempfile.mkdtemp(prefix="topics-pipeline-"))
        wrong: list[str] = ["it did not end"]
        try:
            line, wrong = run(folder, output, given.days, seed, given.master)
            table.append(line)
        finally:
            if wrong:
                print(f"seed {seed}: what there is lies in {folder}")
            else:
                shutil.rmtree(folder)
        failed |= bool(wrong)
    print(f"{'seed':>12} {'kills (d: driver)':30} {'result':16} {'took':>7}")
    print("\n".join(table))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
