"""Runs the whole pipeline with a kill in the middle, and compares the result with pandas.

python -m pipeline [--output DIR] [--days N]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from support.server import Server

from .dataset import Row, dataset
from .expected import Dead, expected
from .feed import Feed
from .job import DEAD, RESULTS
from .progress import Progress, progress
from .report import PLOT
from .runner import HERE, JOB_TIMEOUT, Job, kill_in_the_middle

TRIGGERS = 15
"""The minimum number of micro-batches for all rows, so that a kill can happen in the middle."""


def heads(client: Client, *topics: str) -> int:
    """The number of records that were ever published in the topics."""
    found = client.call("POST", "/v0/state", {"topics": list(topics)})["topics"]
    return sum(int(state["head_seq"]) for state in found.values())


def stream(server: Server, folder: Path, rows: dict[str, list[Row]]) -> list[str]:
    """Feeds and runs the job, kills it in the middle, and lets it finish. Returns the problems."""
    client = Client(Connection(server.url, None, None, 60.0))
    for topic in rows:
        client.call("PUT", f"/v0/topics/{topic}", {})
    per_trigger = {topic: -(-len(found) // TRIGGERS) for topic, found in rows.items()}
    total = sum(len(found) for found in rows.values())

    def so_far() -> Progress:
        return progress(folder / "checkpoints" / RESULTS)

    # While one batch is processed, the rows of the next two are available.
    feed = Feed(server.url, rows, lambda: so_far().rows, 2 * sum(per_trigger.values()))
    with Job(server.url, folder, per_trigger) as job:
        feed.start()
        kill_point = kill_in_the_middle(
            job, feed, total, so_far, lambda: heads(client, RESULTS, DEAD)
        )
    print(kill_point, flush=True)
    with Job(server.url, folder, per_trigger) as job:
        while feed.is_alive():
            job.check()
            feed.join(0.2)
        if feed.error is not None:
            raise feed.error
        job.finish()
    end = so_far()
    print(f"resumed from batch {kill_point.query.committed}, done with batch {end.committed}")
    wrong = [] if kill_point.in_the_middle else ["the kill did not land in the middle"]
    if end.rows != total:
        wrong.append(f"{end.rows} of {total} rows were processed")
    return wrong


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


def run(folder: Path, output: Path, days: int | None) -> int:
    started = time.monotonic()
    rows = dataset(days)
    hours, dead = expected(rows)
    shown = ", ".join(f"{len(found)} rows of {topic}" for topic, found in rows.items())
    print(f"{shown}; {len(hours)} hours of airports and {len(dead)} dead letters are expected")
    server = Server(folder / "data")
    server.start()
    try:
        wrong = stream(server, folder, rows)
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
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--output", type=Path, default=HERE.parent / "target/pipeline", help="for plot and Parquet"
    )
    arguments.add_argument("--days", type=int, help="of the year; all of it unless given")
    given = arguments.parse_args()
    output = given.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    # Removes the results of earlier runs, so that they cannot count for this one.
    for old in (f"{RESULTS}.parquet", f"{DEAD}.parquet"):
        shutil.rmtree(output / old, ignore_errors=True)
    (output / PLOT).unlink(missing_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="topics-pipeline-"))
    code = 1
    try:
        code = run(folder, output, given.days)
    finally:
        if code == 0:
            shutil.rmtree(folder)
        else:
            print(f"what there is lies in {folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
