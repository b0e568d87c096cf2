"""Compares two saved runs of the benchmarks: `python -m benches.compare A B`.

A and B are files of rows, or several files of repetitions, separated by commas. A row of B differs
from the one of A when its median is further away than the noise: the largest of

* the range of its repetitions in A, and in B: those of several files, else those within the one run
* the change of the device's figure beside the row
* for a row that has neither: the median change of all device figures, and at least a tenth
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

from benches.report import Row, Run, load, short

# Of a row without repetitions: the least change that counts.
LEAST = 0.1

Key = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """One row in both runs: medians, and how much of the change noise can be."""

    program: str
    work: str
    unit: str
    better: str
    before: float
    after: float
    noise: float

    @property
    def ratio(self) -> float:
        """What has become of the figure."""
        return self.after / self.before

    @property
    def verdict(self) -> str:
        """`better` or `worse` beyond noise, or nothing."""
        if distance(self.before, self.after) <= self.noise:
            return ""
        less = self.after < self.before
        return "better" if less == (self.better == "less") else "worse"


def distance(a: float, b: float) -> float:
    """The relative difference of two figures, the same in both directions."""
    low, high = sorted([abs(a), abs(b)])
    if high == 0:
        return 0.0
    return high / low - 1 if low > 0 else float("inf")


def spread(values: list[float]) -> float:
    """The relative range of repetitions."""
    return distance(min(values), max(values)) if len(values) > 1 else 0.0


def rows_by_name(runs: list[Run]) -> dict[Key, list[Row]]:
    """The repetitions of each row."""
    found: dict[Key, list[Row]] = {}
    for row in (row for run in runs for row in run.rows):
        found.setdefault((row.program, row.work), []).append(row)
    return found


def repetitions(rows: list[Row]) -> list[float]:
    """The figures of several runs, or the repetitions within the only one."""
    return [row.figure for row in rows] if len(rows) > 1 else rows[0].runs or [rows[0].figure]


def device(rows: list[Row]) -> float | None:
    """The median of the device's figures beside a row."""
    known = [row.device for row in rows if row.device]
    return statistics.median(known) if known else None


def compare(before: list[Run], after: list[Run]) -> list[Change]:
    """The rows that both have, in the order of the first."""
    a, b = rows_by_name(before), rows_by_name(after)
    both = [key for key in a if key in b]
    drifts: dict[Key, float] = {}
    for key in both:
        old, new = device(a[key]), device(b[key])
        if old is not None and new is not None:
            drifts[key] = distance(old, new)
    usual = max(statistics.median(drifts.values()) if drifts else 0.0, LEAST)
    changes = []
    for key in both:
        olds, news = repetitions(a[key]), repetitions(b[key])
        known = [spread(values) for values in (olds, news) if len(values) > 1]
        if key in drifts:
            known.append(drifts[key])
        changes.append(
            Change(
                *key,
                a[key][0].unit,
                a[key][0].better,
                statistics.median(row.figure for row in a[key]),
                statistics.median(row.figure for row in b[key]),
                max(known, default=usual),
            )
        )
    return changes


def render(before: list[Run], after: list[Run]) -> list[str]:
    """The comparison as text."""
    changes = compare(before, after)
    lines = [f"{'work':<66}{'A':>10}{'B':>10} {'unit':<9}{'B/A':>6}{'noise':>8}"]
    lines.append("-" * 118)
    for c in changes:
        name = f"{c.program}: {c.work}"
        figures = f"{short(c.before):>10}{short(c.after):>10} {c.unit:<9}"
        ratio = f"{c.ratio:.2f}" if c.before else "-"
        lines.append(f"{name:<66.66}{figures}{ratio:>6}{c.noise:>8.0%}  {c.verdict}".rstrip())
    lines.append("-" * 118)
    for verdict in ("worse", "better"):
        found = [f"{c.program}: {c.work}" for c in changes if c.verdict == verdict]
        lines.append(f"{verdict} beyond noise: {len(found)} of {len(changes)}")
        lines += [f"  {name}" for name in found]
    machines = {run.about.get("machine", "an unnamed one") for run in before + after}
    if len(machines) > 1:
        lines.append(f"different machines: {', '.join(sorted(machines))}")
    only = set(rows_by_name(before)) ^ set(rows_by_name(after))
    if only:
        lines.append(f"{len(only)} rows are in one of the two only")
    return lines


def main() -> None:
    """Reads the files and prints the comparison."""
    parser = argparse.ArgumentParser(description="compares two saved runs of the benchmarks")
    parser.add_argument("a", help="FILE[,FILE…] of the first run and its repetitions")
    parser.add_argument("b", help="the same of the second")
    names = parser.parse_args()
    a, b = ([run for f in x.split(",") for run in load(Path(f))] for x in (names.a, names.b))
    print("\n".join(render(a, b)))


if __name__ == "__main__":
    main()
