"""Loads a year of flights over HTTP while the server is killed, then compares every byte.

The exit code is 0 only if every sent record is stored, once, at the seq that its ack named.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import topics_engine as te
from support.server import Server, bytes_on_disk
from topics_engine.cli.measure import percentile, sync_latencies
from topics_engine.cli.output import Progress

from .compare import in_process, mismatches, over_http
from .flights import Batch, batches, flights
from .load import Loaders
from .run import print_line, temporary_folder

ROWS = 336_776


@dataclass
class Kill:
    """One kill: its planned point, and the state at that time."""

    number: int
    at: int
    delay: float
    connections: int
    server: Server
    acked: int = 0
    reopened: float = 0.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="how many flights (all)")
    parser.add_argument("--dir", type=Path, help="the data directory; kept (a temporary one)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--batch", type=int, help="flights in a write (500; fewer for few rows)")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--backend", choices=["auto", "posix", "uring"], help="TOPICS_IO_BACKEND")
    args = parser.parse_args(argv)
    if args.batch is None:
        # Enough batches that every kill finds some in flight.
        args.batch = max(1, min(500, args.rows // (20 * args.connections)))
    return args


def kill_points(rng: random.Random, kills: int, total: int) -> list[int]:
    """Numbers of acks, at a distance from each other, between 10 and 90 % of `total`."""
    low, high = total // 10 + 1, total * 9 // 10
    if high - low < kills:
        raise SystemExit(f"{total} batches are too few for {kills} kills: use a smaller --batch")
    return sorted(rng.sample(range(low, high), kills))


def run_kills(server: Server, loaders: Loaders, kills: list[Kill], total: int) -> None:
    """Kills the server at each point and starts it again; then runs the load to its end."""
    for kill in kills:
        if not wait_for_the_point(loaders, kill, total):
            return
        try:
            kill.reopened = server.start()
        except RuntimeError as error:
            loaders.stop(f"after kill {kill.number}: {error}")
            return
        report(loaders, kill, total)
    with loaders.journal.lock:
        loaders.raise_ceiling(total)


def wait_for_the_point(loaders: Loaders, kill: Kill, total: int) -> bool:
    """Waits for a kill point with requests in flight; false if the load failed before.

    The ceiling slows the load down where it would otherwise pass the point.
    """
    journal = loaders.journal
    with journal.lock:
        loaders.raise_ceiling(kill.at + kill.connections)
        while len(journal.acks) < kill.at and not journal.refused:
            journal.lock.wait()
        deadline = time.monotonic() + kill.delay
        settled = 0.0
        while not journal.refused:
            due = time.monotonic() >= deadline or loaders.begun_all()
            if due and not settled:
                # Answers that were received are processed; requests in flight stay in flight.
                kill.server.freeze()
                settled = time.monotonic() + 0.05
            if journal.in_flight and settled and time.monotonic() >= settled:
                journal.in_doubt.clear()
                kill.acked = len(journal.acks)
                kill.server.kill()
                return True
            if len(journal.acks) == total:
                loaders.stop(f"the load ended before kill {kill.number}: use a smaller --batch")
            if loaders.at_ceiling():
                loaders.raise_ceiling(loaders.ceiling + kill.connections)
            journal.lock.wait(0.0002)
    return False


def report(loaders: Loaders, kill: Kill, total: int) -> None:
    """Waits until the outcome of the requests in flight is known, and prints it."""
    journal = loaders.journal
    with journal.lock:
        doubtful = frozenset(journal.in_doubt)
        while not doubtful <= journal.acks.keys() and not journal.refused:
            journal.lock.wait()
        deduped = sum(1 for n in doubtful if n in journal.acks and journal.acks[n].deduped)
    print_line(
        f"kill {kill.number} at {kill.acked / total:.1%}: {kill.acked} batches acked before, "
        f"{len(doubtful)} in doubt, {deduped} of them deduplicated on retry; "
        f"ready again after {kill.reopened * 1e3:.0f} ms"
    )


def load(
    server: Server, todo: list[Batch], args: argparse.Namespace, rng: random.Random
) -> tuple[Loaders, list[Kill], float]:
    """Sends all batches, with kills in between; returns when every batch is acked."""
    points = kill_points(rng, args.kills, len(todo)) if args.kills else []
    kills = [
        Kill(n, at, rng.uniform(0, 0.004), args.connections, server)
        for n, at in enumerate(points, 1)
    ]
    loaders = Loaders(lambda: server.port, todo, args.connections)
    killer = threading.Thread(
        target=run_kills, args=(server, loaders, kills, len(todo)), name="killer", daemon=True
    )
    rows = sum(len(batch.flights) for batch in todo)
    progress = Progress("flights", rows)
    started = time.monotonic()
    loaders.start()
    killer.start()
    while killer.is_alive() or loaders.alive():
        time.sleep(0.05)
        with loaders.journal.lock:
            done = len(loaders.journal.acks)
        progress.show(done * rows // len(todo), f"{done} batches acked")
    progress.end()
    return loaders, kills, time.monotonic() - started


def compare(server: Server, loaders: Loaders, data_dir: Path) -> tuple[list[str], float]:
    """Compares over HTTP, then, after an orderly stop, in this process; returns the seconds of
    the open."""
    acks = list(loaders.journal.acks.values())
    problems = [f"over HTTP: {p}" for p in mismatches(acks, partial(over_http, server.port))]
    print_line(f"compared over HTTP: {'equal' if not problems else 'DIFFERENT'}")
    code = server.stop()
    if code != 0:
        problems.append(f"the server ended with {code} after SIGTERM")
    started = time.monotonic()
    with te.open(str(data_dir)) as database:
        took = time.monotonic() - started
        here = [f"in process: {p}" for p in mismatches(acks, partial(in_process, database))]
    print_line(f"compared in process: {'equal' if not here else 'DIFFERENT'}")
    return problems + here, took


def figures(
    loaders: Loaders,
    kills: list[Kill],
    took: float,
    device: float,
    opened: float,
    server_facts: tuple[int, int, int],
) -> list[tuple[str, str]]:
    """Prints the table at the end."""
    acks = list(loaders.journal.acks.values())
    records = sum(len(a.batch.flights) for a in acks)
    down = sum(kill.reopened for kill in kills)
    syncs = [a.fsync_ms for a in acks if not a.deduped]
    disk, resident, anonymous = server_facts
    payload = sum(len(f.data) for a in acks for f in a.batch.flights)
    return [
        ("records", f"{records:,} in {len(acks):,} batches, {payload / 2**20:.1f} MiB of JSON"),
        ("records/s", f"{records / (took - down):,.0f}  ({records / took:,.0f} with the kills)"),
        ("acks/s", f"{len(acks) / (took - down):,.0f}"),
        ("fsync p50", f"{percentile(syncs, 0.5):.2f} ms  (device {device * 1e3:.2f} ms)"),
        ("ready after a kill", ", ".join(f"{k.reopened * 1e3:.0f} ms" for k in kills) or "-"),
        ("open after a clean stop", f"{opened * 1e3:.1f} ms in process"),
        ("disk after a clean stop", f"{disk / 2**20:.1f} MiB, {disk / records:.0f} bytes a record"),
        ("memory of the server", f"{resident / 2**20:.0f} MiB, {anonymous / 2**20:.0f} anonymous"),
    ]


def demo(args: argparse.Namespace, data_dir: Path) -> int:
    rng = random.Random(args.seed)
    print_line(f"seed {args.seed}, directory {data_dir}")
    todo = batches(flights(args.rows), args.batch)
    size = sum(len(b.body()) for b in todo) // len(todo)
    device = percentile(sync_latencies(data_dir.parent, 100, size), 0.5)
    server = Server(data_dir, env={"TOPICS_IO_BACKEND": args.backend} if args.backend else None)
    try:
        server.start()
        with te.connect(server.url) as db:
            for topic in sorted({batch.topic for batch in todo}):
                db.topic(topic, durability="fsync").create()
        print_line(
            f"{len(todo)} batches of {args.batch} to {server.url} on {args.connections} connections"
        )
        loaders, kills, took = load(server, todo, args, rng)
        problems = list(loaders.journal.refused)
        if not problems:
            memory = server.memory()
            problems, opened = compare(server, loaders, data_dir)
            facts = (bytes_on_disk(data_dir), *memory)
    finally:
        server.ensure_dead()
    for problem in problems:
        print(f"MISMATCH {problem}", file=sys.stderr)
    if problems:
        return 1
    for name, value in figures(loaders, kills, took, device, opened, facts):
        print_line(f"  {name:<24} {value}")
    print_line("every flight is there once, at the seq that its ack named, byte for byte")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.dir is not None:
        if args.dir.exists() and any(args.dir.iterdir()):
            raise SystemExit(f"{args.dir} is not empty")
        args.dir.mkdir(parents=True, exist_ok=True)
        return demo(args, args.dir)
    with temporary_folder() as folder:
        return demo(args, folder / "data")


if __name__ == "__main__":
    sys.exit(main())
