"""All of it, with a kill in the middle, compared with pandas.

python -m pipeline [--folder DIR] [--days N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import pandas as pd
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from benches.demo.server import Server

from .expected import expected
from .happenings import Row, happenings
from .job import DEAD, RESULTS

HERE = Path(__file__).resolve().parents[1]
BATCH = 5_000
"""Records of one write, at most."""
PATIENCE = 900.0


class Feed(threading.Thread):
    """Appends both topics, a simulated day at a time, as fast as the server takes them. What came
    in before the kill and what came after is up to the pace of the job."""

    def __init__(self, url: str, rows: dict[str, list[Row]], pause: float) -> None:
        super().__init__(daemon=True)
        self._client = Client(Connection(url, None, None, 60.0))
        self._rows = rows
        self._pause = pause
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            at = dict.fromkeys(self._rows, 0)
            day = min(rows[0].arrives for rows in self._rows.values())
            while any(at[topic] < len(rows) for topic, rows in self._rows.items()):
                day += timedelta(days=1)
                for topic, rows in self._rows.items():
                    first = at[topic]
                    while at[topic] < len(rows) and rows[at[topic]].arrives < day:
                        at[topic] += 1
                    self._append(topic, rows[first : at[topic]], first)
                time.sleep(self._pause)
        except BaseException as e:
            self.error = e

    def _append(self, topic: str, rows: list[Row], first: int) -> None:
        for i in range(0, len(rows), BATCH):
            records = [{"data": json.loads(row.text)} for row in rows[i : i + BATCH]]
            body = {"records": records, "idempotency_key": f"{topic}-{first + i}"}
            self._client.call("POST", f"/v0/topics/{topic}", body)


class Job:
    """The streaming job in a process group of its own: a Python process and a JVM."""

    def __init__(self, url: str, folder: Path, *flags: str) -> None:
        self._log = (folder / "job.log").open("a")
        command = [sys.executable, "-m", "pipeline.job", url, str(folder), *flags]
        self._process = subprocess.Popen(
            command, cwd=HERE, stdout=self._log, stderr=self._log, start_new_session=True
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and every worker of this job."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def wait(self) -> int:
        code = self._process.wait(timeout=PATIENCE)
        self._log.close()
        return code


def head(client: Client, topic: str) -> int:
    found = client.call("POST", "/v0/state", {"topics": [topic]})["topics"]
    return int(found[topic]["head_seq"]) if topic in found else 0


def stream(server: Server, folder: Path, rows: dict[str, list[Row]], wanted: int) -> None:
    """Feeds and runs the job, kills it half way, and lets it end."""
    client = Client(Connection(server.url, None, None, 60.0))
    for topic in rows:
        client.call("PUT", f"/v0/topics/{topic}", {})
    feed = Feed(server.url, rows, pause=0.1)
    job = Job(server.url, folder)
    feed.start()
    try:
        until = time.monotonic() + PATIENCE
        while head(client, RESULTS) < wanted // 2:
            if not job.running or time.monotonic() > until:
                raise SystemExit(f"the job came to nothing: see {folder / 'job.log'}")
            time.sleep(0.05)
    finally:
        job.kill()
    told = f"{head(client, RESULTS)} of {wanted} results and {head(client, DEAD)} dead letters"
    print(f"killed in the middle: {told}, {head(client, 'flights')} flights had been fed")
    feed.join(PATIENCE)
    if feed.error is not None:
        raise feed.error
    job = Job(server.url, folder, "--drain")
    try:
        if code := job.wait():
            raise SystemExit(f"the job failed with {code}: see {folder / 'job.log'}")
    finally:
        job.kill()


def compare(folder: Path, hours: pd.DataFrame, dead: list[tuple[str, str, int]]) -> list[str]:
    """What differs."""
    found = pd.read_parquet(folder / f"{RESULTS}.parquet")
    wrong = []
    if found.duplicated(["origin", "hour"]).any():
        wrong.append("an hour of an airport is there twice")
    found = found.sort_values(["origin", "hour"], ignore_index=True)
    try:
        # An hour in which nothing departed has no delays; a sum of nothing is none in SQL.
        ours = found.fillna({"delay_sum": 0.0})
        pd.testing.assert_frame_equal(ours, hours[found.columns], check_exact=True)
    except AssertionError as e:
        wrong.append(f"delays: {e}")
    letters = pd.read_parquet(folder / f"{DEAD}.parquet")
    got = sorted(letters[["reason", "topic", "seq"]].itertuples(index=False, name=None))
    if got != dead:
        odd = set(got) ^ set(dead)
        wrong.append(f"{len(got)} dead letters, not {len(dead)}: {sorted(odd)[:5]}")
    if not (folder / "delays.png").stat().st_size:
        wrong.append("the plot is empty")
    return wrong


def run(folder: Path, days: int | None) -> int:
    started = time.monotonic()
    rows = happenings(days)
    hours, dead = expected(rows)
    shown = ", ".join(f"{len(found)} rows of {topic}" for topic, found in rows.items())
    print(f"{shown}; {len(hours)} hours of airports and {len(dead)} dead letters are expected")
    server = Server(folder / "data")
    server.start()
    try:
        stream(server, folder, rows, len(hours))
        command = [sys.executable, "-m", "pipeline.report", server.url, str(folder)]
        with (folder / "report.log").open("w") as log:
            subprocess.run(command, cwd=HERE, check=True, stderr=log, timeout=PATIENCE)
        wrong = compare(folder, hours, dead)
    finally:
        server.ensure_dead()
    for line in wrong:
        print(f"WRONG: {line}")
    if not wrong:
        print(f"equal to pandas, each row once; plot and Parquet in {folder}")
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, help="kept; a temporary one is not")
    arguments.add_argument("--days", type=int, help="of the year; all of it unless given")
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="topics-pipeline-"))
    if given.folder and folder.exists() and any(folder.iterdir()):
        print(f"{folder} is not empty")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    code = run(folder.resolve(), given.days)
    if code == 0 and given.folder is None:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
