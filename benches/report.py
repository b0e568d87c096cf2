"""The rows of a benchmark: printed as a table, saved as lines of JSON. `report.rs` does the same.

A file of rows belongs to one run of the benchmarks. Its first line is the run: `date`, `commit`,
`machine`, `scale` (1 unless the sizes are smaller, to try the benchmarks). Other lines are rows:

`program`, `work`  name the row; no other row of a run has both
`figure`, `unit`   the figure: the median of `runs`
`better`           `less` or `more`
`goal`             the least or largest figure that is good enough, or null
`runs`             the figures of the repetitions
`device`           what the device does in the same run, in the same unit, or null
`peers`            the figures of other products in the same run, by name
`latency`          pairs of a quantile and its value in µs, `device_latency` those of the device
`notes`            texts
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Latency = list[tuple[float, float]]

LESS_IS_BETTER = {"µs", "ms", "s", "min", "B", "MB", "MiB", "GB"}


@dataclass(frozen=True)
class Row:
    """One row."""

    program: str
    work: str
    figure: float
    unit: str
    better: str
    goal: float | None = None
    runs: list[float] = field(default_factory=list)
    device: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    latency: Latency = field(default_factory=list)
    device_latency: Latency = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        """Whether there is a goal and the figure is worse."""
        if self.goal is None:
            return False
        return self.figure > self.goal if self.better == "less" else self.figure < self.goal

    @property
    def best_peer(self) -> tuple[str, float] | None:
        """The peer with the best figure."""
        choose = min if self.better == "less" else max
        return choose(self.peers.items(), key=lambda peer: peer[1], default=None)

    def times_better(self, than: float) -> float:
        """How many times better the figure is than another one of its unit."""
        ours, theirs = self.figure, than
        return theirs / ours if self.better == "less" else ours / theirs

    @property
    def goal_text(self) -> str:
        """The goal with its direction."""
        sign = "≤" if self.better == "less" else "≥"
        return "" if self.goal is None else f"{sign} {short(self.goal)}"


@dataclass(frozen=True)
class Run:
    """The rows of one run."""

    about: dict[str, Any]
    rows: list[Row]


def short(value: float) -> str:
    """A figure in at most eight characters."""
    size = abs(value)
    if size >= 1e7:
        return f"{value / 1e6:.1f} M"
    if size >= 1e6:
        return f"{value / 1e6:.2f} M"
    if size >= 1e4:
        return f"{value / 1e3:.1f} k"
    return f"{value:.0f}" if size >= 100 else f"{value:.2f}"


def parse(lines: Iterable[str]) -> list[Run]:
    """The runs of saved lines. Rows before the first line of a run are a run of their own."""
    runs: list[Run] = []
    for line in lines:
        if not line.strip():
            continue
        value = json.loads(line)
        if "work" not in value:
            runs.append(Run(value, []))
            continue
        if not runs:
            runs.append(Run({}, []))
        runs[-1].rows.append(Row(**value))
    return runs


def load(path: Path) -> list[Run]:
    """The runs of a file."""
    return parse(path.read_text(encoding="utf-8").splitlines())


def machine() -> str:
    """What the figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores {platform.machine()}, {memory:.0f} GiB, {system}"


def begin(path: Path) -> None:
    """Begins the file of a run."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "machine": machine(),
        "scale": float(os.environ.get("TOPICS_BENCH_SCALE", "1")),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about) + "\n", encoding="utf-8")


def scaled(n: int, step: int = 1) -> int:
    """`n` at the size of this run, as a multiple of `step`, and not 0."""
    scale = float(os.environ.get("TOPICS_BENCH_SCALE", "1"))
    return max(int(n * scale) // step, 1) * step


def curve(times: list[int]) -> Latency:
    """Quantiles and their values in µs, of nanoseconds."""
    at = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0]
    ordered = sorted(times)
    return [(q, ordered[round((len(ordered) - 1) * q)] / 1000) for q in at] if ordered else []


def tail(latency: Latency) -> str:
    """The quantiles above the median as a note."""
    known = dict(latency)
    return f"p99 {known[0.99]:.1f}, p99.9 {known[0.999]:.1f}, max {known[1.0]:.0f}"


class Table:
    """A table of rows with goals, which are saved in the file `TOPICS_BENCH_OUT` too."""

    def __init__(self, program: str, title: str) -> None:
        self.program = program
        self.missed: list[str] = []
        self.works: set[str] = set()
        print(f"\n{title}\n{'-' * 118}")
        print(f"{'work':<46}{'figure':>12} {'unit':<8}{'goal':>11}  {'':<6} notes", flush=True)

    def row(
        self,
        work: str,
        figures: float | list[float],
        unit: str,
        goal: tuple[str, float] | None = None,
        **more: Any,
    ) -> None:
        """Prints and saves a row of one figure or of repetitions; `goal` is ("≤" or "≥", value)."""
        runs = figures if isinstance(figures, list) else [figures]
        less = goal[0] == "≤" if goal else unit in LESS_IS_BETTER
        self.add(
            Row(
                self.program,
                work,
                statistics.median(runs),
                unit,
                "less" if less else "more",
                goal[1] if goal else None,
                runs,
                **more,
            )
        )

    def add(self, row: Row) -> None:
        """Prints and saves a row, and records a missed goal."""
        assert row.work not in self.works, f"two rows are called {row.work!r}"
        self.works.add(row.work)
        mark = "" if row.goal is None else "MISSED" if row.missed else "ok"
        figure, notes = short(row.figure), "; ".join(row.notes)
        text = f"{row.work:<46}{figure:>12} {row.unit:<8}{row.goal_text:>11}  {mark:<6} {notes}"
        print(text.rstrip(), flush=True)
        if row.missed:
            self.missed.append(f"{row.work}: {figure} {row.unit}, goal {row.goal_text}")
        path = os.environ.get("TOPICS_BENCH_OUT")
        if path:
            with open(path, "a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")

    def finish(self) -> None:
        """Prints the missed goals."""
        print("\n".join(f"goal missed: {m}" for m in self.missed) or "every goal is met")
