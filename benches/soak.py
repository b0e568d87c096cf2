"""Mixed traffic on one server for an hour, and what of its process grows: `python -m benches.soak`.

The traffic is the same in each minute: topics with caps are written and read, queues worked off,
topics, consumers and routers created and dropped, streams opened and closed, transactions
committed. Every ten seconds the memory, descriptors and threads of the process and the disk of its
directory go into a table, from which a plot is drawn where matplotlib is. After the warm-up all of
them should level off: the exit code is 1 if one has a trend, by a line through the medians of each
minute, that would add more than its limit in an hour, or if a call failed.

With `--remote` the server ships to an object store that fails by a timetable, and is killed in it;
see `soak_store`. Medians are then those of a period of the timetable, and the exit code is 1 too if
the server does not recover from a fault, or if what is restored at the end is not what it had.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import topics_engine as te
from support.server import Server, bytes_on_disk

from . import soak_store
from .demo.run import print_line, temporary_folder
from .soak_store import Acked, Kills, Store, Timetable

SETTINGS: te.ServerSettings = {
    "checkpoint_interval_ms": 5000,
    "segment_max_events": 5000,
}
EVERY_SECONDS = 10.0
TICK_SECONDS = 0.25
WARM_UP = 0.25
"""The part of the run before the trend is looked at."""
LIMITS = {
    "rss MiB": 16.0,
    "anonymous MiB": 16.0,
    "descriptors": 16.0,
    "threads": 2.0,
    "disk MiB": 64.0,
}
"""The growth in an hour that is within the noise of allocators, caches and segments."""

Job = Callable[[te.Database, random.Random, int], None]


def write_and_read(db: te.Database, random: random.Random, turn: int) -> None:
    """Eight topics of which the caps keep the last records."""
    topic = db.topic(f"kept.{turn % 8}")
    ack = topic.append([{"n": turn, "text": "x" * random.randrange(400)} for _ in range(100)])
    records = list(topic.read(after=ack.first_seq - 1, limit=100, gaps="skip"))
    assert len(records) == 100, len(records)


def expire_and_delete(db: te.Database, random: random.Random, turn: int) -> None:
    """Records that expire, and records that are deleted by tag and by seq."""
    topic = db.topic("expiring")
    ack = topic.append([turn] * 20, tag=f"t:{turn % 50}")
    topic.delete(seqs=[ack.first_seq, ack.last_seq])
    topic.delete(tag=f"t:{(turn + 25) % 50}")


def work(db: te.Database, random: random.Random, turn: int) -> None:
    """Jobs that are done, jobs that fail once, and jobs that become dead letters."""
    queue = db.queue("jobs")
    queue.append([{"fails": random.random() < 0.1} for _ in range(20)])
    for job in queue.claim("soak", max=20):
        if job.data["fails"]:
            job.nack(error="as asked")
        else:
            job.ack()


def churn(db: te.Database, random: random.Random, turn: int) -> None:
    """A topic with a consumer and a router that live for ten turns."""
    source = db.topic(f"churn.{turn}")
    source.append([turn] * 10)
    db.router(f"churn-{turn}", source=source.name, dest=f"churn.{turn}.copy")
    source.append([turn] * 10)
    batch = source.consumer("reader").read(wait=1)
    assert len(batch)
    batch.commit()
    if (old := turn - 10) >= 0:
        db.router(f"churn-{old}").drop()
        db.topic(f"churn.{old}").drop()
        db.topic(f"churn.{old}.copy").drop()


def watch(db: te.Database, random: random.Random, turn: int) -> None:
    """A stream over all kept topics that ends after a few records."""
    with db.watch({"kept.0": te.LATEST, "kept.*": te.LATEST}, gaps="skip") as stream:
        db.topic("kept.0").append(turn)
        db.topic("kept.1").append(turn)
        for _ in range(2):
            assert stream.next(wait=10) is not None


def commit(db: te.Database, random: random.Random, turn: int) -> None:
    """Transactions over two topics, one in eight of them aborted; one writer, and some that end."""
    writer = "soak" if turn % 2 else f"soak-{turn % 100}"
    with suppress(Aborted), db.transaction(writer) as tx:
        tx.append("ledger.a", [turn] * 5)
        tx.append("ledger.b", [turn] * 5)
        if turn % 8 == 0:
            raise Aborted
    if turn % 100 == 0:
        db.forget_writer(f"soak-{turn}")


def connect_anew(db: te.Database, random: random.Random, turn: int) -> None:
    """A client of its own, and requests that are refused."""
    with te.connect(db.path) as other:
        other.topic("kept.0").tail(5)
        with suppress(te.NotFound):
            other.topic("no-such-topic").state()
        list(other.topics("kept."))


def prepare(db: te.Database) -> None:
    """Creates the topics that stay."""
    for n in range(8):
        db.topic(f"kept.{n}").create(cap_records=20_000)
    for name in ("ledger.a", "ledger.b", "jobs.dead", Acked.TOPIC):
        db.topic(name).create(cap_records=Acked.CAP)
    db.topic("expiring").create(ttl="20s")
    db.queue("jobs", max_deliveries=2, dead_letter="jobs.dead")


class Aborted(Exception):
    """Ends a transaction without a commit."""


JOBS: tuple[Job, ...] = (
    write_and_read, expire_and_delete, work, churn, watch, commit, connect_anew,
)  # fmt: skip


class Traffic:
    """One thread for each kind of job, each with a client of its own, at a steady pace. A turn that
    a kill of the server interrupted is repeated.
    """

    def __init__(
        self, url: str, jobs: Sequence[Job], kills: Kills, pause: float, seed: int
    ) -> None:
        self._url, self._kills, self._pause, self._seed = url, kills, pause, seed
        self._over = threading.Event()
        self.turns: Counter[str] = Counter()
        self.interrupted = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(job,)) for job in jobs]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, job: Job) -> None:
        name, rng, turn = job.__name__, random.Random(f"{self._seed} {job.__name__}"), 0
        with te.connect(self._url) as db:
            while not self._over.wait(self._pause):
                mark = self._kills.mark()
                try:
                    job(db, rng, turn)
                except Exception as error:
                    if isinstance(error, te.TopicsError) and self._kills.interrupted(mark):
                        self.interrupted += 1
                        continue
                    self.failures.append(f"{name}, turn {turn}: {type(error).__name__}: {error}")
                turn += 1
                self.turns[name] += 1


def sample(server: Server) -> dict[str, float]:
    """What the process and its directory hold now."""
    rss, anonymous = server.memory()
    process = Path(f"/proc/{server.pid}")
    return {
        "rss MiB": rss / 2**20,
        "anonymous MiB": anonymous / 2**20,
        "descriptors": len(os.listdir(process / "fd")),
        "threads": len(os.listdir(process / "task")),
        "disk MiB": bytes_on_disk(server.data_dir) / 2**20,
    }


def trend(minutes: Sequence[float], values: Sequence[float], span: float = 1.0) -> float:
    """What the values gain in an hour, by a line through the medians of each span of minutes."""
    by_span: dict[int, list[float]] = {}
    for minute, value in zip(minutes, values, strict=True):
        by_span.setdefault(int(minute // span), []).append(value)
    if len(by_span) < 2:
        return 0.0
    line = statistics.linear_regression(
        list(by_span), [statistics.median(found) for found in by_span.values()]
    )
    return line.slope / span * 60


def draw(table: Path, picture: Path) -> None:
    """One panel for each value."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with table.open(encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    names = [name for name in rows[0] if name != "minute"]
    figure, panels = plt.subplots(len(names), 1, figsize=(9, 2.2 * len(names)), sharex=True)
    for panel, name in zip(panels, names, strict=True):
        panel.plot([row["minute"] for row in rows], [row[name] for row in rows])
        panel.set_ylabel(name)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def grown(
    rows: Sequence[dict[str, float]], limits: dict[str, float], warm_up: float, span: float
) -> bool:
    """Prints the level of each value; whether one has a trend after the warm-up, in minutes."""
    warm = math.ceil(warm_up / span) * span
    late = [row for row in rows if row["minute"] >= warm] or list(rows)
    grew = False
    for name, limit in limits.items():
        values = [row[name] for row in late]
        gain = trend([row["minute"] for row in late], values, span)
        grew |= gain > limit
        print_line(
            f"{name}: {rows[0][name]:.1f} at the start, {values[0]:.1f} after the warm-up, "
            f"{values[-1]:.1f} at the end, {gain:+.1f} an hour (limit {limit:g})"
        )
    return grew


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--remote", action="store_true", help="ship to a store that fails")
    parser.add_argument("--minutes", type=float, help="60, with --remote 30")
    parser.add_argument("--pause", type=float, help="seconds between turns (0.1; --remote: 0.2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("target/bench"), help="for table and plot")
    asked = parser.parse_args(argv)
    minutes, pause = (30.0, 0.2) if asked.remote else (60.0, 0.1)
    asked.minutes = minutes if asked.minutes is None else asked.minutes
    asked.pause = pause if asked.pause is None else asked.pause
    return asked


def sampled(
    server: Server, store: Store | None, faults: Timetable | None, seconds: float, table: Path
) -> list[dict[str, float]]:
    """Lets the traffic and the timetable run; returns the samples, which are in the table too."""
    rows: list[dict[str, float]] = []
    started = time.monotonic()
    with table.open("w", encoding="utf-8") as file:
        while (elapsed := time.monotonic() - started) < seconds:
            if faults:
                faults.advance()
            if elapsed >= len(rows) * EVERY_SECONDS:
                rows.append({"minute": round(elapsed / 60, 2), **sample(server)})
                if store and faults:
                    rows[-1] |= {**store.sample(), **faults.sample()}
                lines = csv.DictWriter(file, list(rows[-1]))
                if len(rows) == 1:
                    lines.writeheader()
                lines.writerow({name: round(value, 2) for name, value in rows[-1].items()})
                file.flush()
            time.sleep(TICK_SECONDS)
    if faults:
        faults.finish()
    return rows


def soak(asked: argparse.Namespace, folder: Path, stack: ExitStack) -> int:
    """Runs the traffic, and the timetable of the store if there is one; returns the exit code."""
    seconds = asked.minutes * 60
    store = stack.enter_context(Store(folder / "s3")) if asked.remote else None
    settings = {**SETTINGS, **store.settings} if store else SETTINGS
    server = stack.enter_context(Server(folder / "data", **settings))
    kills, acked = Kills(server), Acked()
    with te.connect(server.url) as db:
        prepare(db)
    faults = stack.enter_context(Timetable(store, server, kills, seconds)) if store else None
    jobs = [*JOBS, acked.append, soak_store.read_cold] if store else JOBS
    table = asked.out / ("soak-remote.csv" if store else "soak.csv")
    with Traffic(server.url, jobs, kills, asked.pause, asked.seed) as traffic:
        rows = sampled(server, store, faults, seconds, table)
    if store:
        soak_store.ship_all(server.url)
    code = server.stop()
    print_line(f"{sum(traffic.turns.values())} turns: {dict(traffic.turns)}")
    problems = traffic.failures
    span, warm_up, limits = 1.0, WARM_UP, LIMITS
    if store and faults:
        span, warm_up = faults.period / 60, soak_store.WARM_UP
        limits = LIMITS | soak_store.LIMITS
        print_line(f"{traffic.interrupted} turns were interrupted by a kill and repeated")
        for line in faults.report():
            print_line(line)
        problems += faults.problems
        if seconds > 2 * faults.period:
            problems += [f"not deleted: {key}" for key in store.of_earlier_epochs()]
        problems += soak_store.compare(store.url, server.data_dir, folder / "copy", acked)
        print_line(f"restored and compared: {len(acked.numbers)} acked records of one topic")
    for problem in problems[:20]:
        print_line(problem)
    grew = grown(rows, limits, asked.minutes * warm_up, span)
    with suppress(ImportError):
        draw(table, table.with_suffix(".png"))
    return int(grew or bool(problems) or code != 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the traffic; returns the exit code."""
    asked = arguments(argv)
    asked.out.mkdir(parents=True, exist_ok=True)
    with temporary_folder() as folder, ExitStack() as stack:
        try:
            return soak(asked, folder, stack)
        except pytest.skip.Exception as absent:
            raise SystemExit(str(absent)) from None


if __name__ == "__main__":
    sys.exit(main())
