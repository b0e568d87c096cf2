"""Runs a streaming job as a process, and kills it, its server or one of its executors at random."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
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
"""The shares of processed rows between which kills are due while rows are still fed."""
TRIGGERS = 15
"""The minimum number of micro-batches for all rows, so that a kill has rows before and after it."""
LONGEST_DELAY = 1.0
"""Seconds of a random wait before a kill: about one micro-batch. It ends when a batch is
committed."""


class Job:
    """The streaming job in its own session: a Python process, a JVM and Spark's workers."""

    def __init__(
        self,
        url: str,
        folder: Path,
        per_trigger: dict[str, int],
        program: str = "pipeline.job",
        env: dict[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._log = (folder / "job.log").open("a")
        self._log_hint = f"see {folder / 'job.log'}"
        limits = [f"{topic}={rows}" for topic, rows in per_trigger.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, url, str(folder), *limits, *options],
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

    def processes(self) -> dict[int, str]:
        """The command of every process of the job. Spark's workers have left its group, but not
        its session."""
        found = {}
        for name in os.listdir("/proc"):
            try:
                if name.isdecimal() and os.getsid(int(name)) == self._process.pid:
                    found[int(name)] = Path("/proc", name, "cmdline").read_text().replace("\0", " ")
            except (ProcessLookupError, FileNotFoundError):
                continue
        return found

    def signal(self, number: signal.Signals) -> None:
        """Signals every process of the job."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_one(self, command: str) -> None:
        """SIGKILL for the newest process with these words in its command. What forks others is
        older than they are."""
        named = [pid for pid, found in self.processes().items() if command in found]
        if not named:
            raise SystemExit(f"the job has no process {command}: {self._log_hint}")
        os.kill(max(named), signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM, its executors and every worker; also for those that
        outlive a driver that has ended."""
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


def package(folder: Path) -> Path:
    """`pyspark_topics` for `--py-files`: the modules of its wheel."""
    target = folder / "pyspark_topics.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for module in sorted((HERE / "pyspark_topics").glob("*.py")):
            archive.write(module, module.relative_to(HERE))
    return target


def on_cluster(master: str, folder: Path) -> list[str]:
    """Options of a job on a cluster, whose executors get the package from `--py-files`."""
    return ["--master", master, "--py-files", str(package(folder))]


Phase = Literal["feeding", "processing"]
Victim = Literal["driver", "server", "executor", "worker"]
"""What is killed. `driver` is the whole job, which is started again; the others are replaced while
it runs."""


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """When something is killed: at a random moment, from a seed."""

    phase: Phase
    share: float
    """The share of the rows that must be processed before."""
    delay: float
    """Seconds from then to the kill, at most."""
    victim: Victim = "driver"

    def is_due(self, query: Progress, begun: int, total: int, is_feeding: bool) -> bool:
        """Whether the delay begins. `begun` is the last batch that was committed when the job was
        started, or when the kill before this one hit: without a batch since then, the kills would
        hit the same state twice."""
        if self.phase == "processing" and is_feeding:
            return False
        return query.committed > begun and query.rows >= self.share * total


def planned_kills(
    seed: int, others: Sequence[Victim] = (), last: float = WHILE_FEEDING[1]
) -> list[PlannedKill]:
    """One or two kills of the driver and one of each of the others while rows are fed, due before a
    share of `last`; and one of the driver when all are fed and not all are processed. The time is
    divided into equal parts, and each kill is in the second half of its own, so that there are
    batches between them."""
    rng = random.Random(seed)
    drivers: list[Victim] = ["driver"] * rng.randint(1, 2)
    victims = [*others, *drivers]
    rng.shuffle(victims)
    first = WHILE_FEEDING[0]
    length = (last - first) / len(victims)
    kills = [
        PlannedKill(
            "feeding",
            first + length * (part + rng.uniform(0.5, 1)),
            rng.uniform(0, LONGEST_DELAY),
            victim,
        )
        for part, victim in enumerate(victims)
    ]
    return [*kills, PlannedKill("processing", 0.0, rng.uniform(0, LONGEST_DELAY))]


@dataclass(frozen=True, slots=True)
class KillPoint:
    """The state at a kill."""

    phase: Phase
    query: Progress
    fed: int
    total: int
    published: int
    begun: int = -1
    """The last batch that was committed at the start of the job or at the kill before."""
    victim: Victim = "driver"

    @property
    def in_time(self) -> bool:
        """Whether the kill was in its phase, with rows before and after it, and with a batch since
        the kill before."""
        if self.query.committed <= self.begun:
            return False
        if self.phase == "feeding":
            return self.fed < self.total and self.query.rows > 0 and self.published > 0
        return self.fed == self.total and self.query.rows < self.total

    def __str__(self) -> str:
        share = self.query.rows / self.total
        at = f"in batch {self.query.planned}" if self.query.busy else "between batches"
        return (
            f"{self.victim} killed in {self.phase}, {at}, {self.query.committed} being the last "
            f"one committed: {self.query.rows} rows processed ({share:.0%}), {self.fed} fed, "
            f"{self.total} in all; {self.published} published"
        )


def wait_until_due(
    job: Job,
    planned: PlannedKill,
    feed: Feed,
    total: int,
    begun: int,
    progress: Callable[[], Progress],
) -> None:
    """Waits for the moment of a kill."""
    until = time.monotonic() + JOB_TIMEOUT
    while not planned.is_due(query := progress(), begun, total, feed.is_alive()):
        job.check()
        if feed.error is not None:
            raise feed.error
        if time.monotonic() > until:
            raise SystemExit(f"the job made no progress within {JOB_TIMEOUT:g} s")
        time.sleep(0.01)
    until = time.monotonic() + planned.delay
    while time.monotonic() < until and progress().committed == query.committed:
        time.sleep(0.01)


def run_with_kills(
    url: str,
    rows: dict[str, list[Row]],
    kills: Sequence[PlannedKill],
    start: Callable[[dict[str, int]], Job],
    progress: Callable[[], Progress],
    published: Callable[[], int],
    record: Callable[[Row], dict[str, Any]] = plain,
    triggers: int = TRIGGERS,
    archived: Mapping[str, int] | None = None,
    others: Mapping[Victim, Callable[[Job], None]] | None = None,
) -> tuple[list[KillPoint], list[str]]:
    """Feeds the topics and runs the job, kills at the planned moments, and lets the job finish.

    Args:
        start: starts the job with the maximum rows of a micro-batch of each topic.
        published: the number of rows in the job's result.
        archived: the number of rows of each topic that are on the server already.
        others: how to kill, and to replace, what is not the driver.

    Returns:
        The kills and the problems.
    """
    client = Client(Connection(url, None, None, 60.0))
    for topic in rows:
        client.call("PUT", f"/v0/topics/{topic}", {})
    per_trigger = {topic: -(-len(found) // triggers) for topic, found in rows.items()}
    total = sum(len(found) for found in rows.values())
    # While one batch is processed, the rows of the next two are available.
    lead = 2 * sum(per_trigger.values())
    feed = Feed(url, rows, lambda: progress().rows, lead, record, archived)
    feed.start()
    points: list[KillPoint] = []
    remaining = list(kills)
    while remaining:
        begun = progress().committed
        with start(per_trigger) as job:
            while remaining:
                planned = remaining.pop(0)
                wait_until_due(job, planned, feed, total, begun, progress)
                # The job is stopped while its progress is read, so that the kill hits exactly that
                # state.
                job.signal(signal.SIGSTOP)
                query = progress()
                point = KillPoint(
                    planned.phase, query, feed.fed, total, published(), begun, planned.victim
                )
                points.append(point)
                print(point, flush=True)
                if planned.victim == "driver":
                    job.kill()
                    break
                assert others is not None
                others[planned.victim](job)
                job.signal(signal.SIGCONT)
                begun = query.committed
    with start(per_trigger) as job:
        job.finish()
    if feed.error is not None:
        raise feed.error
    end = progress()
    print(f"resumed from batch {points[-1].query.committed}, done with batch {end.committed}")
    wrong = [f"a kill was not in time: {point}" for point in points if not point.in_time]
    if end.rows != total:
        wrong.append(f"{end.rows} of {total} rows were processed")
    return points, wrong
