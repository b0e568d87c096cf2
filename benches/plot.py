"""Draws the growth table of `bench-open` as a plot: `plot.py growth.csv growth.png`."""

from __future__ import annotations

import csv
import sys
from collections import defaultdict

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def main(table: str, picture: str) -> None:
    """One panel per axis, one line per cost, both scales logarithmic."""
    lines: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    with open(table, encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            lines[row["axis"]][row["what"]].append((int(row["n"]), float(row["value"])))
    figure, panels = plt.subplots(1, len(lines), figsize=(11, 4.2), squeeze=False, sharey=True)
    for panel, (axis, costs) in zip(panels[0], lines.items(), strict=True):
        for what, points in costs.items():
            panel.loglog(*zip(*points, strict=True), marker="o", label=what)
        panel.set_xlabel(axis)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylim(bottom=0.5)
    panels[0][-1].legend(fontsize="small")
    figure.suptitle("Cost against size")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
