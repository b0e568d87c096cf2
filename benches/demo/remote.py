"""Loads a year of flights while server and object store fail, loses the directory, restores it.

The store is a real S3 server behind a proxy that cuts answers and swallows connections. The server
is killed three times, the S3 server once. Then the server is killed in the middle of the load, and
its data directory is deleted. What is in the bucket is read in three ways: where it is, as a copy,
and by a directory that goes on with it. The exit code is 0 only if each has every flight that was
acked before the last shipped round, byte for byte at the seq that its ack named, and nothing that
was not sent. Before that, one group-by over the bucket alone is compared with pandas over what was
sent: with `te.open(URL)`, and as a Spark job.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import topics_engine as te
from support.gateway import CREDENTIALS, Gateway
from support.server import Server, bytes_on_disk
from support.toxiproxy import Toxiproxy

from .aggregates import compare_aggregates
from .flights import Batch, batches, flights
from .load import Ack, Journal, Loaders
from .run import print_line, temporary_folder

ROWS = 336_776
PREFIX = "flights"
SETTINGS: te.ServerSettings = {
    "hot_retain_segments": 4,
    "segment_max_events": 5000,
    "pack_bytes": 4 << 20,
    "remote_base_interval_ms": 1000,
}
"""Segments and packs that a year of flights fills often enough."""

REQUESTS = re.compile(
    r'^topics_remote_requests_total\{op="(\w+)",outcome="(\w+)"\} (\d+)$', re.MULTILINE
)
RESTORABLE = re.compile(r"^topics_remote_last_success_timestamp_seconds (\S+)$", re.MULTILINE)
BASE_SECONDS = 120.0
KINDS = {"H": "HEAD", "p": "packs", "b": "bases", "r": "rounds"}
"""Kinds of objects, by the first letter of their names."""
SENT = re.compile(r'^topics_remote_bytes_total\{direction="sent"\} (\d+)$', re.MULTILINE)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo-remote", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="how many flights (all)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--batch", type=int, default=100, help="flights in a write (100)")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--black-hole", type=float, default=10.0, help="seconds of it (10)")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds of the rest, times this")
    return parser.parse_args(argv)


class RequestCounts:
    """Requests of all processes of a server. Each counts from 0: the last readings are summed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._by_process: dict[int, tuple[Counter[str], int]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            self.read()

    def read(self) -> None:
        """Reads the counts of the running process; none if it does not answer."""
        try:
            pid = self._server.pid
            with urllib.request.urlopen(f"{self._server.url}/metrics", timeout=2) as answer:
                text = answer.read().decode()
        except OSError:
            return
        counts = Counter({f"{op} {outcome}": int(n) for op, outcome, n in REQUESTS.findall(text)})
        sent = SENT.search(text)
        self._by_process[pid] = (counts, int(sent[1]) if sent else 0)

    def total(self) -> tuple[Counter[str], int]:
        """The requests by kind and outcome, and the bytes that were sent."""
        self._ended.set()
        self._thread.join()
        counts: Counter[str] = Counter()
        for of_process, _ in self._by_process.values():
            counts.update(of_process)
        return counts, sum(sent for _, sent in self._by_process.values())


def acked(journal: Journal) -> int:
    with journal.lock:
        return len(journal.acks)


def advance(loaders: Loaders, to: int, seconds: float) -> None:
    """Lets the load run to `to` started batches, evenly over `seconds`, and waits for most acks."""
    with loaders.journal.lock:
        begun = loaders.ceiling
    started = time.monotonic()
    while True:
        share = min(1.0, (time.monotonic() - started) / seconds) if seconds else 1.0
        with loaders.journal.lock:
            loaders.raise_ceiling(begun + round((to - begun) * share))
        if loaders.journal.refused:
            raise SystemExit(f"the load stopped: {loaders.journal.refused}")
        if share == 1.0 and acked(loaders.journal) >= to - 8:
            return
        time.sleep(0.01)


def killed(server: Server) -> None:
    server.kill()
    print_line(f"server killed, ready again after {server.start() * 1e3:.0f} ms")


def wait_for_a_base(server: Server) -> None:
    """Waits until a state of this process can be restored: each open begins with a new base."""
    started = time.monotonic()
    while time.monotonic() < started + BASE_SECONDS:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
            found = RESTORABLE.search(answer.read().decode())
        if found and float(found[1]) > 0:
            print_line(f"a state can be restored after {time.monotonic() - started:.1f} s more")
            return
        time.sleep(0.05)
    raise SystemExit(f"no state could be restored within {BASE_SECONDS:g} s")


def misfortunes(
    server: Server,
    gateway: Gateway,
    proxy: Toxiproxy,
    loaders: Loaders,
    total: int,
    args: argparse.Namespace,
) -> None:
    """Nine tenths of the load, in six parts."""

    def part(number: int, name: str, seconds: float) -> None:
        print_line(f"{name}: {acked(loaders.journal)} of {total} batches acked")
        advance(loaders, total * 9 * number // 60, seconds)

    pace = args.pace
    part(1, "the store answers", 2 * pace)
    wait_for_a_base(server)
    with proxy.toxic("limit_data", toxicity=0.5, bytes=300):
        part(2, "half of the answers of the store are cut", 4 * pace)
    killed(server)
    with proxy.toxic("timeout", timeout=0):
        part(3, f"the store is a black hole for {args.black_hole:g} s", args.black_hole)
    killed(server)
    with gateway.down():
        part(4, "the store is killed", 2 * pace)
    part(5, "the store is there again", 2 * pace)
    killed(server)
    part(6, "until the machine is lost", 6 * pace)
    wait_for_a_base(server)


def lose_the_machine(
    server: Server, loaders: Loaders, total: int, rng: random.Random
) -> tuple[float, int]:
    """Kills the server in the middle of the load and deletes its directory. Returns when that was,
    and how many bytes the directory had.
    """
    goes_on = threading.Thread(target=advance, args=(loaders, total, 4), daemon=True)
    goes_on.start()
    time.sleep(rng.uniform(1, 3))
    server.kill()
    at = time.time()
    loaders.stop("the machine is lost")
    goes_on.join()
    size = bytes_on_disk(server.data_dir)
    shutil.rmtree(server.data_dir)
    return at, size


def compare(
    opened: Callable[[], te.Database], journal: Journal, todo: list[Batch], boundary: float
) -> tuple[list[str], dict[str, int], float, list[tuple[str, bytes]]]:
    """Compares what is opened with the acks of before `boundary` (monotonic).

    Returns:
        The differences; how many flights were restored, and of these acked before and later; the
        seconds until the first record was read; the flights that were sent and are there, with
        their topics.
    """
    acks: dict[str, list[Ack]] = {}
    for ack in journal.acks.values():
        acks.setdefault(ack.batch.topic, []).append(ack)
    unacked: dict[str, set[bytes]] = {}
    for batch in todo:
        if batch.number not in journal.acks:
            unacked.setdefault(batch.topic, set()).update(f.data for f in batch.flights)
    problems: list[str] = []
    counts = dict.fromkeys(("restored", "acked before", "acked later"), 0)
    sent: list[tuple[str, bytes]] = []
    first = 0.0
    started = time.monotonic()
    with opened() as db:
        for topic, of_topic in sorted(acks.items()):
            expected = {
                ack.first_seq + i: (flight, ack.at <= boundary)
                for ack in of_topic
                for i, flight in enumerate(ack.batch.flights)
            }
            for record in db.topic(topic).read(after=0):
                if isinstance(record, te.Gap):
                    continue
                first = first or time.monotonic() - started
                counts["restored"] += 1
                flight, before = expected.pop(record.seq, (None, False))
                data = bytes(record.raw)
                sent.append((topic, flight.data if flight else data))
                if flight is None:
                    if data not in unacked.get(topic, ()):
                        problems.append(f"{topic}: seq {record.seq} holds what was not sent")
                elif (record.tag, data) != (flight.carrier, flight.data):
                    problems.append(f"{topic}: seq {record.seq} differs from what was acked there")
                else:
                    counts["acked before" if before else "acked later"] += 1
            missing = sorted(seq for seq, (_, before) in expected.items() if before)
            if missing:
                problems.append(f"{topic}: {len(missing)} are missing, the first is {missing[0]}")
    return problems[:20], counts, first, sent


def demo(args: argparse.Namespace, folder: Path) -> int:
    rng = random.Random(args.seed)
    print_line(f"seed {args.seed}, directory {folder}")
    todo = batches(flights(args.rows), args.batch)
    os.environ.update(CREDENTIALS)
    with Gateway(folder / "s3") as gateway, Toxiproxy(gateway.port) as proxy:
        settings: te.ServerSettings = {**SETTINGS, "remote_url": gateway.url(PREFIX, proxy.port)}
        server = Server(folder / "data", **settings)
        try:
            server.start()
            # Both clocks at the same time: acks have the monotonic one, rounds the other.
            offset = time.time() - time.monotonic()
            requests = RequestCounts(server)
            with te.connect(server.url) as db:
                for topic in sorted({batch.topic for batch in todo}):
                    db.topic(topic, durability="disk").create()
            loaders = Loaders(lambda: server.port, todo, args.connections)
            loaders.start()
            misfortunes(server, gateway, proxy, loaders, len(todo), args)
            lost_at, lost_bytes = lose_the_machine(server, loaders, len(todo), rng)
        finally:
            server.ensure_dead()
        counts, sent = requests.total()
        print_line(f"the data directory is deleted: {acked(loaders.journal)} batches were acked")
        objects = gateway.files(PREFIX)
        stored = sum(path.stat().st_size for path in objects.values())
        url = gateway.url(PREFIX)
        started = time.monotonic()
        done = te.restore(url, folder / "copy", copy=True)
        copied = time.monotonic() - started
        boundary = done.state_ms / 1e3 - offset
        firsts: dict[str, float] = {}
        problems: list[str] = []

        def compared(name: str, opened: Callable[[], te.Database]) -> dict[str, int]:
            differences, found, firsts[name], flights_there[:] = compare(
                opened, loaders.journal, todo, boundary
            )
            problems.extend(f"{name}: {text}" for text in differences)
            return found

        flights_there: list[tuple[str, bytes]] = []
        compared("the bucket itself", lambda: te.open(url, read_only=True))
        problems += compare_aggregates(url, flights_there, folder / "spark")
        started = time.monotonic()
        te.restore(url, folder / "restored")
        took = time.monotonic() - started
        compared("the copy", lambda: te.open(folder / "copy"))
        found = compared("the successor", lambda: te.open(folder / "restored", remote_url=url))
    for problem in problems:
        print(f"MISMATCH {problem}", file=sys.stderr)
    kinds = Counter(KINDS[key.rpartition("/")[2][0]] for key in objects)
    puts = sum(n for what, n in counts.items() if what.split()[0] in ("create", "replace"))
    for name, value in [
        ("acked before the round", f"{found['acked before']:,} flights, all restored"),
        ("beyond it", f"{found['acked later']:,} restored all the same"),
        ("restored", f"{found['restored']:,} flights"),
        ("state", f"{lost_at - done.state_ms / 1e3:.2f} s before the loss (RPO)"),
        ("later states in the bucket", str(done.has_later)),
        ("seqs are skipped", str(done.skips)),
        ("requests", ", ".join(f"{n} {what}" for what, n in sorted(counts.items()) if n)),
        ("sent", f"{sent / 2**20:.1f} MiB, {puts / (sent / 2**30):,.0f} PUT per GB"),
        ("objects", ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))),
        (
            "in the bucket",
            f"{stored / 2**20:.1f} MiB; the lost directory had {lost_bytes / 2**20:.1f} MiB",
        ),
        ("restore", f"{took:.2f} s, as a copy {copied:.2f} s"),
        *(
            (f"first read of {name}", f"{first * 1e3:.0f} ms after the open began")
            for name, first in firsts.items()
        ),
    ]:
        print_line(f"  {name:<28} {value}")
    if problems or not found["acked before"]:
        return 1
    print_line(
        "every flight that was acked before the last round is there, byte for byte, in the bucket, "
        "the copy and the successor; aggregates of the bucket are those of pandas"
    )
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    with temporary_folder() as folder:
        try:
            return demo(args, folder)
        except pytest.skip.Exception as absent:
            raise SystemExit(str(absent)) from None


if __name__ == "__main__":
    sys.exit(main())
