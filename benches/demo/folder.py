"""Loads flights while the folder that is the object store is moved away and hangs.

The server is killed while the folder is away, after it is back, and while the folder hangs. The
exit code is 0 only if every acked flight can be read at the end, byte for byte at the seq that its
ack named, most of them from the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import topics_engine as te
from support.server import Server

from .compare import mismatches, over_http
from .flights import batches, flights
from .load import Loaders
from .remote import ROWS, RequestCounts, acked, advance, killed
from .run import print_line, temporary_folder

SETTINGS: te.ServerSettings = {
    "hot_retain_segments": 1,
    "segment_max_events": 250,
    "pack_bytes": 1 << 20,
    "remote_base_interval_ms": 200,
    "checkpoint_interval_ms": 500,
    "cold_timeout_ms": 2000,
}
"""Segments that a part of the load fills, and of which most leave the disk."""
COLD_SECONDS = 120.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo-folder", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="how many flights (all)")
    parser.add_argument("--batch", type=int, default=100, help="flights in a write (100)")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--hang", type=float, default=20.0, help="seconds of it (20)")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds of the rest, times this")
    return parser.parse_args(argv)


@contextmanager
def moved_away(archive: Path) -> Iterator[None]:
    """Another folder may be in the place of the archive meanwhile: its content is not used."""
    away = archive.with_name("away")
    archive.rename(away)
    yield
    shutil.rmtree(archive, ignore_errors=True)
    away.rename(archive)


@contextmanager
def hanging(archive: Path) -> Iterator[None]:
    """An open of an object does not return, as on a file system whose server is gone."""
    objects = [p for p in archive.rglob("*") if p.is_file() and ".topics" not in p.parts]
    aside = archive.with_name("aside")
    for path in objects:
        kept = aside / path.relative_to(archive)
        kept.parent.mkdir(parents=True, exist_ok=True)
        path.rename(kept)
        os.mkfifo(path)
    yield
    for path in objects:
        with contextlib.suppress(OSError):  # no open waits
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        (aside / path.relative_to(archive)).replace(path)


def state(server: Server) -> str:
    with te.connect(server.url) as db:
        found: str = db.metrics()["remote_state"]
        return found


def cold_read(server: Server, topic: str) -> str:
    """What a read of the oldest records comes to, and when."""
    started = time.monotonic()
    try:
        with te.connect(server.url) as db:
            n = len(list(db.topic(topic).read(after=0, limit=100)))
        outcome = f"{n} records"
    except te.TopicsError as error:
        outcome = error.code
    return f"{outcome} after {time.monotonic() - started:.1f} s"


def wait_until_cold(server: Server) -> int:
    """Waits until all but the newest segments of each topic have left the disk. Returns the number
    of packs."""
    ends = time.monotonic() + COLD_SECONDS
    while time.monotonic() < ends:
        with te.connect(server.url) as db:
            metrics = db.metrics()
            folders = Counter(p.parent for p in server.data_dir.glob("topics/*/*.data"))
            local = max(folders.values(), default=0)
            if metrics["remote_state"] == "ok" and metrics["packs"] and local <= 3:
                return int(metrics["packs"])
            # Two checkpoints after the mark the files go; one without changes is none.
            db.topic("changes").append(time.time())
            db.checkpoint()
        time.sleep(0.2)
    raise SystemExit(f"{local} segments of a topic are on the disk after {COLD_SECONDS:g} s")


def demo(args: argparse.Namespace, folder: Path) -> int:
    todo = batches(flights(args.rows), args.batch)
    archive = folder / "archive"
    settings: te.ServerSettings = {**SETTINGS, "remote_url": archive.as_uri()}
    server = Server(folder / "data", **settings)
    try:
        server.start()
        requests = RequestCounts(server)
        names = sorted({batch.topic for batch in todo})
        with te.connect(server.url) as db:
            for topic in names:
                db.topic(topic, durability="fsync").create()
        loaders = Loaders(lambda: server.port, todo, args.connections)
        loaders.start()

        def part(number: int, name: str, seconds: float) -> None:
            print_line(f"{name}: {acked(loaders.journal)} of {len(todo)} batches acked")
            advance(loaders, len(todo) * number // 6, seconds)

        part(1, "the folder answers", 3 * args.pace)
        wait_until_cold(server)
        with moved_away(archive):
            part(2, "the folder is away", 3 * args.pace)
            killed(server)
            part(3, "the folder is away, for a new process", 3 * args.pace)
            print_line(f"  state {state(server)}, cold read: {cold_read(server, names[0])}")
        killed(server)
        part(4, "the folder is back", 3 * args.pace)
        wait_until_cold(server)
        with hanging(archive):
            part(5, f"the folder hangs for {args.hang:g} s", args.hang)
            print_line(f"  state {state(server)}, cold read: {cold_read(server, names[0])}")
            killed(server)
        part(6, "the folder answers again", 3 * args.pace)
        while loaders.alive():
            time.sleep(0.05)
        packs = wait_until_cold(server)
        acks = list(loaders.journal.acks.values())
        problems = loaders.journal.refused + mismatches(acks, partial(over_http, server.port))
        with te.connect(server.url) as db:
            cold = db.metrics()["cold_read_bytes"]
        counts, sent = requests.total()
        code = server.stop()
        if code != 0:
            problems.append(f"the server ended with {code} after SIGTERM")
        if not cold:
            problems.append("nothing was read from the folder")
    finally:
        server.ensure_dead()
    for problem in problems:
        print(f"MISMATCH {problem}", file=sys.stderr)
    for name, value in [
        ("flights", f"{sum(len(a.batch.flights) for a in acks):,} in {len(acks):,} batches"),
        ("requests", ", ".join(f"{n} {what}" for what, n in sorted(counts.items()) if n)),
        ("sent", f"{sent / 2**20:.1f} MiB, {packs} packs"),
        ("read from the folder", f"{cold / 2**20:.1f} MiB"),
    ]:
        print_line(f"  {name:<24} {value}")
    if problems:
        return 1
    print_line("every acked flight is there once, at its seq, byte for byte")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    with temporary_folder() as folder:
        return demo(args, folder)


if __name__ == "__main__":
    sys.exit(main())
