"""The summary of a run of the benchmarks: `python -m benches.summary FILE.jsonl [PLOT.png]`.

Rows with a goal or a peer, in the order in which they were measured, then the missed goals. With a
second argument the latencies are drawn over their quantiles, each beside the device's.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from benches.report import Row, Run, load, short

WIDTH = 118


def summary(run: Run) -> list[str]:
    """The lines of the summary."""
    about = run.about
    known = [str(about[name]) for name in ("date", "commit", "machine") if about.get(name)]
    lines = [", ".join(known) or "a run without a head line"]
    if about.get("scale", 1) != 1:
        lines.append(f"at {about['scale']} of the sizes: no figure here is a measurement")
    lines.append(
        f"{'work':<57}{'figure':>10} {'unit':<9}{'goal':>10}   {'best peer':<20}{'ratio':>7}"
    )
    lines.append("-" * WIDTH)
    program = ""
    shown = [row for row in run.rows if row.goal is not None or row.peers]
    for row in shown:
        name = f"{row.program}: {row.work}" if row.program != program else f"  {row.work}"
        program = row.program
        lines.append(_line(name, row))
    goals = [row for row in run.rows if row.goal is not None]
    missed = [row for row in goals if row.missed]
    more = len(run.rows) - len(shown)
    lines.append("-" * WIDTH)
    lines.append(f"{len(goals) - len(missed)} of {len(goals)} goals met; {more} more rows above")
    if missed:
        names = [
            f"{row.program}: {row.work} ({row.times_better(row.goal or 0):.2f})" for row in missed
        ]
        text = f"missed, and what is reached of each goal: {'; '.join(names)}"
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return lines


def _line(name: str, row: Row) -> str:
    mark = "!" if row.missed else " "
    text = f"{name:<57.57}{short(row.figure):>10} {row.unit:<9}{row.goal_text:>10} {mark} "
    if row.best_peer:
        peer, figure = row.best_peer
        text += f"{f'{peer} {short(figure)}':<20}{row.times_better(figure):>5.1f} x"
    return text.rstrip()


def draw(rows: list[Row], picture: Path) -> None:
    """A panel for each row with latencies: µs over quantiles, the tail stretched."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    across = 3
    down = -(-len(rows) // across)
    figure, panels = plt.subplots(down, across, figsize=(12, 2.8 * down), squeeze=False)
    marks = [0.5, 0.9, 0.99, 0.999, 0.9999]
    for panel, row in zip(panels.flat, rows, strict=False):
        for label, values in (("engine", row.latency), ("device", row.device_latency)):
            inner = [(1 / (1 - q), value) for q, value in values if q < 1]
            if inner:
                panel.loglog(*zip(*inner, strict=True), marker=".", label=label)
        panel.set_xticks([1 / (1 - q) for q in marks], [f"{q * 100:g}" for q in marks])
        panel.minorticks_off()
        panel.set_title(f"{row.program}: {row.work}", fontsize=7)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small")
    for panel in panels.flat[len(rows) :]:
        panel.axis("off")
    figure.supylabel("µs")
    figure.supxlabel("percent of the calls")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main(source: str, picture: str = "") -> None:
    """Prints the summary of each run in a file."""
    for run in load(Path(source)):
        print("\n" + "\n".join(summary(run)))
        rows = [row for row in run.rows if row.latency]
        if picture and rows:
            try:
                draw(rows, Path(picture))
            except ModuleNotFoundError as missing:
                print(f"no picture: {missing}; install matplotlib", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
