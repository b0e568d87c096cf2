"""Runs a streaming job as a process: starts it, kills it at random, starts it again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from .dataset import Row
from .feed import Feed, plain
from .progress import Progress

HERE = Path(__file__).resolve().parents[1]
JOB_TIMEOUT = 900.0
WHILE_FEEDING = (0.1, 0.7)
"""The shares of processed rows between which the job is killed while rows are still fed."""
TRIGGERS = 15
"""The minimum number of micro-batches for all rows, so that a kill has rows before and after it."""
LONGEST_DELAY = 1.0
"""Seconds of a random wait before a kill: about one micro-batch."""


class Job:
    """The streaming job in its own session: a Python process, a JVM and Spark's workers."""

    def __init__(
        self,
        url: str,
        folder: Path,
        per_trigger: dict[str, int],
        program: str = "pipeline.job",
        env: dict[str, str] | None = None,
    ) -> None:
        self._log = (folder / "job.log").open("a")
        self._log_hint = f"see {folder / 'job.log'}"
        limits = [f"{topic}={rows}" for topic, rows in per_trigger.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, url, str(folder), *limits],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            env=env,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._log.close()

    def check(self) -> None:
        """Ends the pipeline if the job has ended without a request."""
        if (code := self._process.poll()) is not None:
            raise SystemExit(f"the job ended with {code}: {self._log_hint}")

    def signal(self, number: signal.Signals) -> None:
        """Signals every process of the job. Spark's workers have left its group, but not its
        session."""
        for name in os.listdir("/proc"):
            try:
                if name.isdecimal() and os.getsid(int(name)) == self._process.pid:
                    os.kill(int(name), number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and every worker."""
        if self._process.poll() is None:
            # Stops the processes first: otherwise one that forks during the search would escape.
            self.signal(signal.SIGSTOP)
            self.signal(signal.SIGKILL)
            self._process.wait()

    def finish(self) -> None:
        """Signals the end of the input, and waits until all rows are processed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if code := self._process.wait(timeout=JOB_TIMEOUT):
            raise SystemExit(f"the job failed with {code}: {self._log_hint}")


Phase = Literal["feeding", "processing"]


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """When the job is killed: at a random moment, from a seed."""

    phase: Phase
    share: float
    """The share of the rows that must be processed before."""
    delay: float
    """Seconds from then to the kill."""


def planned_kills(seed: int) -> list[PlannedKill]:
    """One or two kills while rows are fed, one when all are fed and not all are processed."""
    rng = random.Random(seed)
    low, high = WHILE_FEEDING
    shares = sorted(rng.uniform(low, high) for _ in range(rng.randint(1, 2)))
    kills = [PlannedKill("feeding", share, rng.uniform(0, LONGEST_DELAY)) for share in shares]
    return [*kills, PlannedKill("processing", 0.0, rng.uniform(0, LONGEST_DELAY))]


@dataclass(frozen=True, slots=True)
class KillPoint:
    """The state at a kill."""

    phase: Phase
    query: Progress
    fed: int
    total: int
    published: int

    @property
    def in_time(self) -> bool:
        """Whether the kill was in its phase, with rows before and after it."""
        if self.phase == "feeding":
            return self.fed < self.total and self.query.rows > 0 and self.published > 0
        return self.fed == self.total and self.query.rows < self.total

    def __str__(self) -> str:
        share = self.query.rows / self.total
        at = f"in batch {self.query.planned}" if self.query.busy else "between batches"
        return (
            f"killed in {self.phase}, {at}, {self.query.committed} being the last one committed: "
            f"{self.query.rows} rows processed ({share:.0%}), {self.fed} fed, {self.total} in all; "
            f"{self.published} published"
        )


def kill(
    job: Job,
    planned: PlannedKill,
    feed: Feed,
    total: int,
    progress: Callable[[], Progress],
    published: Callable[[], int],
) -> KillPoint:
    """Kills the job at the planned moment. The job is stopped while its progress is read, so that
    it is killed in exactly that state."""
    until = time.monotonic() + JOB_TIMEOUT

    def is_due() -> bool:
        fed = planned.phase == "feeding" or not feed.is_alive()
        return fed and progress().rows >= planned.share * total

    while not is_due():
        job.check()
        if feed.error is not None:
            raise feed.error
        if time.monotonic() > until:
            raise SystemExit(f"the job made no progress within {JOB_TIMEOUT:g} s")
        time.sleep(0.01)
    time.sleep(planned.delay)
    job.signal(signal.SIGSTOP)
    point = KillPoint(planned.phase, progress(), feed.fed, total, published())
    job.kill()
    return point


def run_with_kills(
    url: str,
    folder: Path,
    rows: dict[str, list[Row]],
    seed: int,
    progress: Callable[[], Progress],
    published: Callable[[], int],
    program: str = "pipeline.job",
    record: Callable[[Row], dict[str, Any]] = plain,
    env: dict[str, str] | None = None,
) -> tuple[list[KillPoint], list[str]]:
    """Feeds the topics and runs the job, kills it at the moments of the seed, and lets it finish.
    `env` is the environment of the job. Returns the kills and the problems."""
    client = Client(Connection(url, None, None, 60.0))
    for topic in rows:
        client.call("PUT", f"/v0/topics/{topic}", {})
    per_trigger = {topic: -(-len(found) // TRIGGERS) for topic, found in rows.items()}
    total = sum(len(found) for found in rows.values())
    # While one batch is processed, the rows of the next two are available.
    lead = 2 * sum(per_trigger.values())
    feed = Feed(url, rows, lambda: progress().rows, lead, record)
    feed.start()
    points = []
    for planned in planned_kills(seed):
        with Job(url, folder, per_trigger, program, env) as job:
            points.append(kill(job, planned, feed, total, progress, published))
        print(points[-1], flush=True)
    with Job(url, folder, per_trigger, program, env) as job:
        job.finish()
    if feed.error is not None:
        raise feed.error
    end = progress()
    print(f"resumed from batch {points[-1].query.committed}, done with batch {end.committed}")
    wrong = [f"a kill was not in time: {point}" for point in points if not point.in_time]
    if end.rows != total:
        wrong.append(f"{end.rows} of {total} rows were processed")
    return points, wrong
