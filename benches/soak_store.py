"""The object store of `python -m benches.soak --remote`: it fails by a timetable, and at the end it
must hold what the server does.

The store is a real S3 server behind a proxy. Each period of five minutes has the same faults: slow
answers, cut answers, a black hole, SIGKILL of the store; in the first ones also SIGKILL of the
server, and of both. After each of them the age of the newest state that can be restored must return
below the interval of rounds and two uploads. A request in a black hole is given up after 10 s,
others repeat their attempts after pauses of up to 10 s.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import topics_engine as te
from support.gateway import BUCKET, CREDENTIALS, Gateway, go_tool
from support.server import Server, bytes_on_disk
from support.toxiproxy import Toxiproxy
from support.waiting import DEADLINE, until

PREFIX = "soak"
PERIOD = 300.0
"""Seconds of the timetable. A run that is shorter has all of it once, in shorter times."""
INTERVAL = 1.0
SETTINGS: te.ServerSettings = {
    "segment_max_events": 1000,
    "hot_retain_segments": 1,
    "pack_bytes": 1 << 20,
    "cold_timeout_ms": 2000,
    "remote_interval_ms": int(INTERVAL * 1000),
    "remote_base_interval_ms": 10_000,
    "remote_window_ms": 60_000,
}
"""Segments become cold, and garbage is collected, many times in a run."""
WARM_UP = 0.4
KILLS = 0.2
"""The part of the run in which the server is killed. From then on one process is looked at."""
LIMITS = {"descriptors": 40.0, "threads": 10.0, "objects": 120.0, "bucket MiB": 64.0}
"""In an hour. One descriptor or thread for each fault makes 48, one object for each base 150."""
WITHOUT_LIMIT = ("lag s", "chains broken")


class Store:
    """A bucket behind a proxy, until the end of the block."""

    def __init__(self, folder: Path) -> None:
        os.environ.update(CREDENTIALS)
        # No process is left if the second one cannot be had.
        go_tool("toxiproxy")
        self._objects = folder / BUCKET / PREFIX
        self.gateway = Gateway(folder)
        self.proxy = Toxiproxy(self.gateway.port)
        self.url = self.gateway.url(PREFIX)
        """For checks: not through the proxy."""

    @property
    def settings(self) -> te.ServerSettings:
        return {**SETTINGS, "remote_url": self.gateway.url(PREFIX, self.proxy.port)}

    def sample(self) -> dict[str, float]:
        """What the bucket holds now."""
        return {
            "objects": sum(len(names) for _, _, names in os.walk(self._objects)),
            "bucket MiB": bytes_on_disk(self._objects) / 2**20,
        }

    def of_earlier_epochs(self) -> list[str]:
        """Rounds and bases of processes that have ended. Packs stay as long as they are needed."""
        newest = max((path.name for path in self._objects.iterdir() if path.is_dir()), default="")
        keys = (path.relative_to(self._objects) for path in self._objects.glob("*/[br]*"))
        return sorted(str(key) for key in keys if key.parts[0] != newest)

    @contextmanager
    def toxic(self, kind: str, **attributes: int) -> Iterator[None]:
        """Requests and answers have this toxic in the block."""
        with (
            self.proxy.toxic(kind, stream="upstream", **attributes),
            self.proxy.toxic(kind, stream="downstream", **attributes),
        ):
            yield

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.proxy.__exit__(*error)
        self.gateway.__exit__(*error)


class Kills:
    """SIGKILL of the server. A call that a kill may have interrupted may fail."""

    def __init__(self, server: Server) -> None:
        self._server = server
        # Even while the server runs.
        self._changes = 0

    def mark(self) -> int:
        """A value for `interrupted`."""
        return self._changes

    def interrupted(self, mark: int) -> bool:
        """Whether the server was not there all the time since `mark`."""
        return self._changes != mark or mark % 2 == 1

    @contextmanager
    def kill(self) -> Iterator[None]:
        """Kills the server, and starts it on the same directory."""
        self._changes += 1
        self._server.kill()
        self._server.start()
        self._changes += 1
        yield


class Acked:
    """Numbered records, of which the newest are kept, and which of them the server has acked."""

    TOPIC = "acked"
    CAP = 5000

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        """By seq."""
        self.sent = 0

    def append(self, db: te.Database, random: Random, turn: int) -> None:
        """Numbered records, each of them once unless the server is killed."""
        numbers = range(self.sent, self.sent + 10)
        self.sent += len(numbers)
        ack = db.topic(self.TOPIC).append([{"n": n} for n in numbers])
        self.numbers.update(zip(range(ack.first_seq, ack.last_seq + 1), numbers, strict=True))

    def problems(self, db: te.Database) -> list[str]:
        """Acked records that are neither there nor in a gap, and records that are not what was
        sent."""
        there: dict[int, int] = {}
        gaps: list[te.Gap] = []
        for item in db.topic(self.TOPIC).read():
            if isinstance(item, te.Gap):
                gaps.append(item)
            else:
                there[item.seq] = item.data["n"]
        # What the cap has evicted is below the first record, without a gap for a new reader.
        kept = sorted(self.numbers)[max(self.sent - self.CAP, 0) :]
        lost = [
            seq
            for seq in kept
            if seq not in there and not any(gap.first <= seq <= gap.last for gap in gaps)
        ]
        acked = set(self.numbers.values())
        wrong = [
            seq
            for seq, n in there.items()
            if (self.numbers[seq] != n if seq in self.numbers else n in acked or n >= self.sent)
        ]
        return [
            f"acked: {len(seqs)} records {what}, the first is {min(seqs)}"
            for what, seqs in (("are gone", lost), ("differ", wrong))
            if seqs
        ]


def read_cold(db: te.Database, random: Random, turn: int) -> None:
    """The oldest records of a topic, of which most are only in the store."""
    try:
        for _ in db.topic(f"kept.{turn % 8}").read(limit=1000, gaps="skip"):
            pass
    except te.Unavailable as failure:
        if failure.code != "cold_unavailable":
            raise


@contextmanager
def both_killed(store: Store, kills: Kills) -> Iterator[None]:
    """A server that is started while the store is away."""
    with store.gateway.down(), kills.kill():
        yield


@dataclass(frozen=True)
class Fault:
    """A fault that lasts `seconds`, from `at` in each period."""

    name: str
    at: float
    seconds: float
    begin: Callable[[Store, Kills], AbstractContextManager[None]]
    kills_server: bool = False


OPEN = Fault("open", 0, 0, lambda store, kills: nullcontext())
FAULTS = (
    Fault("slow answers", 20, 40, lambda store, _: store.toxic("latency", latency=200)),
    Fault("cut answers", 80, 30, lambda store, _: store.proxy.toxic("limit_data", bytes=2000)),
    Fault("black hole", 130, 60, lambda store, _: store.toxic("timeout", timeout=0)),
    Fault("store killed", 210, 10, lambda store, _: store.gateway.down()),
    Fault("server killed", 235, 0, lambda _, kills: kills.kill(), True),
    Fault("both killed", 250, 20, both_killed, True),
)


class Timetable:
    """Begins and ends the faults of a run, one by one, and looks how the server recovers."""

    def __init__(self, store: Store, server: Server, kills: Kills, seconds: float) -> None:
        self._store, self._kills = store, kills
        self._db = te.connect(server.url)
        self.period = min(PERIOD, seconds)
        scale = self.period / PERIOD
        self._todo = [(0.0, 0.0, OPEN)] + [
            (n * self.period + fault.at * scale, fault.seconds * scale, fault)
            for n in range(int(seconds / self.period))
            for fault in FAULTS
            if not fault.kills_server or n * self.period < seconds * KILLS
        ]
        self._under_way = ExitStack()
        self._fault: Fault | None = None
        self._ends = 0.0
        self._began = time.monotonic()
        self._calm: list[float] = []
        self._recoveries: dict[str, list[float]] = defaultdict(list)
        self.problems: list[str] = []

    def advance(self) -> None:
        """Begins or ends a fault if its time has come."""
        metrics = self._metrics = self._db.metrics()
        broken = "the chain of rounds was broken"
        if metrics["remote_chain_broken"] and broken not in self.problems:
            self.problems.append(broken)
        now = time.monotonic() - self._began
        if self._fault is None:
            if self._todo and self._todo[0][0] <= now:
                _, seconds, self._fault = self._todo.pop(0)
                self._under_way.enter_context(self._fault.begin(self._store, self._kills))
                self._ends = time.monotonic() - self._began + seconds
            else:
                self._calm.append(lag(metrics))
        elif now >= self._ends:
            self._under_way.close()
            took = now - self._ends
            recovered = lag(metrics) < INTERVAL + 2 * upload_seconds(metrics)
            if took > DEADLINE and not recovered:
                self.problems.append(f"no recovery {took:.0f} s after: {self._fault.name}")
            if recovered or took > DEADLINE:
                self._recoveries[self._fault.name].append(took)
                self._fault = None

    def sample(self) -> dict[str, float]:
        """What the last look at the metrics found."""
        values = (self._metrics[name] for name in ("remote_lag_seconds", "remote_chain_broken"))
        return dict(zip(WITHOUT_LIMIT, values, strict=True))

    def finish(self) -> None:
        """Waits until the last fault is over and the server has recovered."""
        while self._fault is not None:
            self.advance()
            time.sleep(0.1)

    def report(self) -> Iterator[str]:
        """How long the recoveries took, and how old the newest state was without a fault."""
        for name, found in self._recoveries.items():
            seconds = ", ".join(f"{took:.1f}" for took in found)
            yield f"{name}: the lag had returned after {seconds} s"
        if self._calm:
            p50, most = statistics.median(self._calm), max(self._calm)
            yield f"lag without a fault: p50 {p50:.2f} s, at most {most:.2f} s"

    def __enter__(self) -> Timetable:
        return self

    def __exit__(self, *error: object) -> None:
        self._under_way.close()
        self._db.close()


def lag(metrics: Mapping[str, Any]) -> float:
    """Seconds that a restore would lack now."""
    if not metrics["remote_last_success_timestamp_seconds"]:
        return math.inf
    return float(metrics["remote_lag_seconds"])


def upload_seconds(metrics: Mapping[str, Any]) -> float:
    return float(metrics["remote_requests"]["create"]["p50_ns"]) / 1e9


def contents(db: te.Database) -> dict[str, Any]:
    """The records and gaps of each topic, and the cursors and routers."""
    found: dict[str, Any] = {}
    for info in db.topics():
        found[info.topic] = [
            (item.first, item.last, item.reason)
            if isinstance(item, te.Gap)
            else (item.seq, item.tag, item.raw)
            for item in db.topic(info.topic).read()
        ]
        found[f"head of {info.topic}"] = info.head_seq
    found["consumers"] = [(c.topic, c.name, c.cursor) for c in db.consumers()]
    found["routers"] = [(r.router, r.source, r.dest) for r in db.routers()]
    return found


def ship_all(url: str) -> None:
    """Waits until everything is in the store. Records that would expire before both directories
    are compared are deleted."""
    with te.connect(url) as db:
        db.topic("expiring").delete(before=db.topic("expiring").state().head_seq + 1)
        until(lambda: db.metrics()["remote_lag_bytes"] == 0)


def compare(url: str, directory: Path, copy: Path, acked: Acked) -> list[str]:
    """What is wrong with a restored copy of the prefix of a closed directory."""
    verified = te.verify(url, data=True)
    problems = [f"{problem['object']}: {problem['detail']}" for problem in verified.problems]
    done = te.restore(url, copy, copy=True)
    if done.skips or done.missing_segments:
        problems.append(f"not the whole state of the closed directory: {done}")
    with (
        te.open(directory, read_only=True, remote_url=url) as closed,
        te.open(copy, read_only=True) as restored,
    ):
        ours, theirs = contents(closed), contents(restored)
        problems += acked.problems(restored)
    differ = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    return problems + [f"the copy differs: {name}" for name in sorted(differ)]
