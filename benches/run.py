"""Runs all benchmarks: `python -m benches.run`, what `make bench` does after building.

The rows of all programs are saved in one file below target/bench, named by the date, and summed up
at the end, with the time that everything took and the disk that was in use at most.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from benches import summary
from benches.report import Table, begin

BIN = str(Path(sys.executable).parent)
RELEASE = "target/release"

# The programs, in their order.
PROGRAMS: dict[str, list[list[str]]] = {
    "embedded": [[f"{RELEASE}/bench-embedded"]],
    "python": [[sys.executable, "-m", "benches.embedded"]],
    "typed": [[sys.executable, "-m", "benches.typed"]],
    "remote": [
        [sys.executable, "-m", f"benches.{name}"] for name in ("remote", "archive", "backup")
    ],
    "open": [
        [f"{RELEASE}/bench-open"],
        [sys.executable, "benches/plot.py", "target/bench/growth.csv", "target/bench/growth.png"],
    ],
    "delivery": [[f"{RELEASE}/bench-delivery"]],
    "jobs": [[f"{RELEASE}/bench-jobs"]],
    "http": [["bash", "benches/http.sh", BIN]],
    "shards": [[f"{RELEASE}/bench-shards", f"{BIN}/topics"]],
}
# Run when they are named only: they answer one question.
EXTRA = {"shards"}


class DiskUse:
    """Watches how much more of a file system is in use than at the start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._before = shutil.disk_usage(folder).used
        self.most = 0

    def __enter__(self) -> DiskUse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.25):
            self.most = max(self.most, shutil.disk_usage(self._folder).used - self._before)


def main() -> int:
    """Runs the programs; the status is that of the first that failed."""
    parser = argparse.ArgumentParser(description="runs the benchmarks")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    names = parser.parse_args().programs or [name for name in PROGRAMS if name not in EXTRA]
    if unknown := set(names) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    folder = Path(os.environ.get("TOPICS_BENCH_DIR", "target/bench"))
    folder.mkdir(parents=True, exist_ok=True)
    out = Path("target/bench") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    begin(out)
    os.environ["TOPICS_BENCH_OUT"] = str(out.absolute())
    os.environ["TOPICS_BENCH_CSV"] = "target/bench/growth.csv"
    failed: dict[str, int] = {}
    took: list[str] = []
    start = time.monotonic()
    with DiskUse(folder) as disk:
        for name in names:
            began = time.monotonic()
            for command in PROGRAMS[name]:
                status = subprocess.run(command, check=False).returncode
                if status:
                    failed[name] = status
            took.append(f"{name} {time.monotonic() - began:.0f} s")
    table = Table("run", "The benchmarks themselves")
    minutes = (time.monotonic() - start) / 60
    table.row("all of it", minutes, "min", ("≤", 20), notes=[", ".join(took)])
    table.row(
        "disk in use at most",
        disk.most / 1e9,
        "GB",
        ("≤", 8),
        notes=[f"below {folder}, counted by the file system"],
    )
    picture = str(out.with_suffix(".png"))
    summary.main(str(out), picture)
    print(f"rows: {out}, latencies: {picture}; compare: python -m benches.compare A.jsonl B.jsonl")
    for name, status in failed.items():
        print(f"{name} failed with status {status}: its rows are not complete", file=sys.stderr)
    return next(iter(failed.values()), 0)


if __name__ == "__main__":
    sys.exit(main())
