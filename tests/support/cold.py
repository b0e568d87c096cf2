"""A topic whose older records are only in an object store."""

from __future__ import annotations

import threading
from pathlib import Path

import topics_engine as te

RECORDS = 60


def settings(url: str) -> te.Settings:
    """Small segments and packs, so that a few records become cold."""
    return {
        "remote_url": url,
        "hot_retain_segments": 1,
        "segment_max_events": 10,
        "remote_base_interval_ms": 100,
        "pack_bytes": 2000,
    }


def packs(archive: Path) -> list[Path]:
    """The packs in a folder that stands for an object store."""
    return sorted(archive.glob("*/p*"))


def files(data_dir: Path) -> int:
    """The number of segments on the disk."""
    return len(list(data_dir.glob("topics/*/*.data")))


def make_cold(db: te.Database, step: float = 0.05) -> None:
    """Writes a topic `t`, most of whose records become cold."""
    for i in range(RECORDS):
        db.topic("t").append({"n": i})
        if i % 10 == 9:
            db.checkpoint()
    wait_until_cold(db, step)


def wait_until_cold(db: te.Database, step: float = 0.05) -> None:
    """Makes a checkpoint each `step` seconds until the cold records have left the disk. Each
    writes a record: a slow store needs longer steps to get ahead of them.
    """
    pause = threading.Event()
    for _ in range(1000):
        # A thread archives; two checkpoints later the files go.
        db.topic("other").append(1)
        db.checkpoint()
        if files(Path(db.path)) <= 4:
            return
        pause.wait(step)
    raise AssertionError(f"{files(Path(db.path))} files are on the disk")


def numbers(rows: object) -> list[int]:
    """The records of `make_cold` among these rows."""
    return [r.data["n"] for r in rows if isinstance(r, te.Record)]  # type: ignore[attr-defined]
