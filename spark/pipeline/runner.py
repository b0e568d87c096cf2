"""Runs the streaming job as a process: starts it, kills it in the middle, starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .feed import Feed
from .progress import Progress

HERE = Path(__file__).resolve().parents[1]
JOB_TIMEOUT = 900.0
MIDDLE = (0.3, 0.7)
"""A kill in the middle happens when a share of the rows between these two is processed."""
AIM = 0.45
"""From this share on, the next batch in progress is killed."""


class Job:
    """The streaming job in its own session: a Python process, a JVM and Spark's workers."""

    def __init__(self, url: str, folder: Path, per_trigger: dict[str, int]) -> None:
        self._log = (folder / "job.log").open("a")
        self._log_hint = f"see {folder / 'job.log'}"
        limits = [f"{topic}={rows}" for topic, rows in per_trigger.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.job", url, str(folder), *limits],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
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


@dataclass(frozen=True, slots=True)
class KillPoint:
    """The state at a kill."""

    query: Progress
    fed: int
    total: int
    published: int

    @property
    def in_the_middle(self) -> bool:
        """Whether rows were still fed and processed, with many rows before and after."""
        low, high = MIDDLE
        processed = low * self.total <= self.query.rows <= high * self.total
        return processed and self.query.busy and self.fed < self.total and self.published > 0

    def __str__(self) -> str:
        share = self.query.rows / self.total
        return (
            f"killed in batch {self.query.planned}, {self.query.committed} being the last one "
            f"committed: {self.query.rows} rows processed ({share:.0%}), {self.fed} fed, "
            f"{self.total} in all; {self.published} published"
        )


def kill_in_the_middle(
    job: Job,
    feed: Feed,
    total: int,
    progress: Callable[[], Progress],
    published: Callable[[], int],
) -> KillPoint:
    """Kills the job during a batch, when it has processed enough. The job is stopped while its
    progress is read, so that it is killed in exactly that state."""
    until = time.monotonic() + JOB_TIMEOUT
    while time.monotonic() < until:
        job.check()
        if feed.error is not None:
            raise feed.error
        now = progress()
        if now.rows >= AIM * total and now.busy:
            job.signal(signal.SIGSTOP)
            kill_point = KillPoint(progress(), feed.fed, total, published())
            # Between two batches the kill would miss a batch, and at the end it is too late.
            if kill_point.query.busy or not feed.is_alive():
                job.kill()
                return kill_point
            job.signal(signal.SIGCONT)
        time.sleep(0.01)
    raise SystemExit(f"the job made no progress within {JOB_TIMEOUT:g} s")
