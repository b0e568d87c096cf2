"""Prints the rates of Spark reads and writes, with its own Parquet and the goals beside them.

python -m bench [--folder DIR]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.dataset import dataset
from pipeline.feed import append, plain
from pyspark_topics.client import Client
from pyspark_topics.options import Connection

from support.server import Server, bytes_on_disk
from support.toxiproxy import Toxiproxy

from .kafka import broker, connector, install
from .measure import FLIGHT_ROWS, FLIGHTS, ROWS, SOURCE

HERE = Path(__file__).resolve().parents[1]
LINK = 125_000
"""KB/s in each direction: 1 Gbit/s."""
GOALS = {
    "read from a server, all columns": 1_000_000,
    "read from a server, seq, data": 1_500_000,
    "read from a directory, all columns": 1_000_000,
    "read from a directory, seq, data": 1_500_000,
    "read from a server, seq alone, count()": 5_000_000,
    "sink, default options, 160 B rows": 1_000_000,
}
"""Rows per second on two cores."""
OURS = {
    "read Parquet, all columns": "read from a server, all columns",
    "read Parquet, seq, data": "read from a server, seq, data",
    "read from Kafka, all columns": "read from a server, all columns",
    "read from Kafka, seq, data": "read from a server, seq, data",
    "read Parquet, count()": "read from a server, seq alone, count()",
    "sink to Parquet": "sink, default options, 160 B rows",
    "sink to Kafka": "sink, default options, 160 B rows",
}
"""The figure of Spark's own with which each of ours is compared."""
PARTS = ("server", "sink", "link", "kafka", "path")
"""In this order, because no server may have the directory open while it is read."""


def fill(port: int) -> None:
    """Ten million records of about 100 bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    pad = "x" * 84
    for at in range(0, ROWS, 10_000):
        body = "".join(f'{{"n":{n:08},"p":"{pad}"}}\n' for n in range(at, at + 10_000))
        body = body.replace('"n":0', '"n":1')
        headers = {"Content-Type": "application/x-ndjson"}
        connection.request("POST", f"/v0/topics/{SOURCE}", body.encode(), headers)
        answer = connection.getresponse()
        assert answer.status in (200, 201), answer.read()
        answer.read()
    connection.request("POST", "/v0/sync", b"{}", {"Content-Type": "application/json"})
    connection.getresponse().read()
    connection.request("POST", "/v0/admin/checkpoint", b"{}", {"Content-Type": "application/json"})
    connection.getresponse().read()


def measure(cores: int, what: str, url: str, folder: Path, *more: str) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.measure", str(cores), what, url, str(folder), *more]
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {process.returncode}")


class Table:
    """Prints figures as they are measured, with the goal or our figure beside them."""

    def __init__(self) -> None:
        self._ours: dict[tuple[str, int], float] = {}

    def show(self, cores: int, found: dict[str, Any]) -> None:
        name = found.pop("name")
        if "rows_per_s" not in found:
            print(f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in found.items()))
            return
        rate = found["rows_per_s"]
        self._ours[name, cores] = rate
        beside = self._comparison(name, cores, rate)
        many = f"{cores} core{'s' * (cores > 1)}"
        print(f"{name:40} {many:8}{rate / 1e6:6.2f} M rows/s{beside}", flush=True)

    def _comparison(self, name: str, cores: int, rate: float) -> str:
        ours = self._ours.get((OURS.get(name, ""), cores))
        if ours is not None:
            return f"   ours {ours / rate:.2f} x"
        goal = GOALS.get(name) if cores == 2 else None
        return "" if goal is None else f"   goal {goal / 1e6:.1f} M: {verdict(rate, goal)}"


def verdict(rate: float, goal: float) -> str:
    return "reached" if rate >= goal else f"missed ({rate / goal:.2f} of it)"


def beside_kafka(table: Table, cores_of: list[int], url: str, folder: Path) -> None:
    """The same rows from a broker that runs only for this measurement."""
    if missing := install():
        print(f"{'read from Kafka':40} not measured: {missing}")
        return
    print(f"Kafka's rows: one broker, Spark's own source of version {connector()}")
    with TemporaryDirectory(prefix="kafka-", dir=folder) as home, broker(Path(home, "0")) as to:
        for cores, what in [(2, "kafka-sink"), *((n, "kafka") for n in cores_of)]:
            for found in measure(cores, what, url, folder, "--broker", to):
                table.show(cores, found)


def beside_link(table: Table, server: Server, folder: Path) -> None:
    """Rows of flights through a proxy that limits the bandwidth, with and without compression."""
    built = subprocess.run(
        [HERE.parent / ".ci/go-tool", "toxiproxy"], capture_output=True, text=True
    )
    if built.returncode:
        print(f"{'a link of limited bandwidth':40} not measured: {built.stderr.strip()}")
        return
    os.environ["TOPICS_TOXIPROXY"] = built.stdout.strip()
    client = Client(Connection(server.url, None, None, 30.0))
    client.call("DELETE", f"/v0/topics/{FLIGHTS}")
    rows = [plain(row) for row in dataset()[FLIGHTS]]
    for at in range(0, FLIGHT_ROWS, len(rows)):
        for _ in append(client, FLIGHTS, rows[: FLIGHT_ROWS - at], at):
            pass
    print(f"A link of {LINK / 125_000:g} Gbit/s, {FLIGHT_ROWS / 1e6:g} M rows of flights:")
    with (
        Toxiproxy(server.port) as proxy,
        proxy.toxic("bandwidth", rate=LINK),
        proxy.toxic("bandwidth", stream="upstream", rate=LINK),
    ):
        for found in measure(2, "link", f"http://127.0.0.1:{proxy.port}", folder):
            table.show(2, found)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, help="kept, with its rows, for the next time")
    arguments.add_argument("--only", choices=PARTS, action="append")
    arguments.add_argument("--cores", type=int, choices=(1, 2), action="append")
    given = arguments.parse_args()
    cores_of = given.cores or [1, 2]
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="topics-spark-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    server, table = Server(folder / "data"), Table()
    there = (folder / "data").exists()
    server.start()
    try:
        if not there:
            started = time.monotonic()
            fill(server.port)
            took, size = time.monotonic() - started, bytes_on_disk(folder / "data")
            print(f"{ROWS / 1e6:g} M records in {took:.0f} s, {size / ROWS:.0f} bytes each on disk")
        for what in PARTS:
            if given.only and what not in given.only:
                continue
            if what == "kafka":
                beside_kafka(table, cores_of, server.url, folder)
                continue
            if what == "link":
                beside_link(table, server, folder)
                continue
            if what == "path":
                server.stop()
            for cores in [2] if what == "sink" else cores_of:
                more = () if what == "path" else ("--pid", str(server.pid))
                for found in measure(cores, what, server.url, folder, *more):
                    table.show(cores, found)
    finally:
        server.ensure_dead()
        if given.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
