"""Continuous backup to a folder that stands for an object store, and restores of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.processes import LIMIT
from support.waiting import until


def settings(tmp_path: Path) -> te.Settings:
    return {
        "remote_url": f"file://{tmp_path}/remote",
        "remote_interval_ms": 20,
    }


def wait_for_backup(db: te.Database) -> None:
    """Waits until everything that was written is in the store, with a base."""

    def is_whole() -> bool:
        metrics = db.metrics()
        return metrics["remote_lag_bytes"] == 0 and metrics["remote_lag_seconds"] == 0

    until(is_whole, 60)


def write_two_states(db: te.Database) -> datetime:
    """Writes 1, and then 2; returns a time between their backups."""
    db.topic("t").append({"n": 1})
    wait_for_backup(db)
    then = datetime.now(UTC)
    # Times of states are in ms.
    until(lambda: datetime.now(UTC) > then + timedelta(milliseconds=2))
    db.topic("t").append({"n": 2})
    wait_for_backup(db)
    return then


def numbers(topic: te.Topic) -> list[int]:
    rows = topic.read(limit=None)
    return [row.data["n"] for row in rows if isinstance(row, te.Record)]


@pytest.mark.parametrize("later", [0, 5])
def test_a_close_without_rounds_leaves_nothing_beyond_its_base(
    data_dir: Path, tmp_path: Path, later: int
) -> None:
    """Its checkpoints remove the log, also where nothing was logged since the last base."""
    only = settings(tmp_path) | {"remote_interval_ms": 0}
    with te.open(data_dir, **only) as db:
        topic = db.topic("t")
        for _ in range(20):
            topic.append([b"x" * 100] * 10_000)
        wait_for_backup(db)
        for _ in range(later):
            topic.append([b"y" * 1000] * 100)
        count = topic.state().count
    done = te.restore(f"file://{tmp_path}/remote", tmp_path / "restored")
    assert not done.skips
    with te.open(tmp_path / "restored", **only) as db:
        assert db.topic("t").state().count == count == 200_000 + later * 100


def test_a_copy_of_a_running_engine_is_restored(data_dir: Path, tmp_path: Path) -> None:
    with te.open(data_dir, **settings(tmp_path)) as db:
        db.topic("t").append([{"n": n} for n in range(5)])
        wait_for_backup(db)
        done = te.restore(f"file://{tmp_path}/remote", tmp_path / "restored", copy=True)
        assert done.skips
        assert done.missing_segments == 0
        # The old directory goes on, and shares no seq with the new one.
        ahead = db.topic("t").append({"n": 5}).last_seq
    with te.open(tmp_path / "restored") as db:
        assert numbers(db.topic("t")) == [0, 1, 2, 3, 4]
        assert db.topic("t").append({"n": 6}).last_seq > ahead
        assert numbers(db.topic("t")) == [0, 1, 2, 3, 4, 6]


def test_the_newest_records_of_a_copy_are_before_its_gap(data_dir: Path, tmp_path: Path) -> None:
    with te.open(data_dir, **settings(tmp_path)) as db:
        db.topic("t", durability="disk").append([{"n": n} for n in range(3)])
        wait_for_backup(db)
        te.restore(f"file://{tmp_path}/remote", tmp_path / "copy", copy=True)
    with te.open(tmp_path / "copy", read_only=True) as copy:
        topic = copy.topic("t")
        assert topic.state().head_seq > 3, "seqs that may have been given are skipped"
        for count in (1, 2, 3):
            newest = topic.tail(count)
            assert [r.seq for r in newest if isinstance(r, te.Record)] == [1, 2, 3][-count:]


def test_a_state_of_the_past_is_restored(data_dir: Path, tmp_path: Path) -> None:
    with te.open(data_dir, **settings(tmp_path)) as db:
        then = write_two_states(db)
    done = te.restore(f"file://{tmp_path}/remote", tmp_path / "then", copy=True, at=then)
    assert done.has_later
    assert done.state_ms <= then.timestamp() * 1000
    with te.open(tmp_path / "then") as db:
        assert numbers(db.topic("t")) == [1]


def test_after_a_clean_close_nothing_lies_beyond(data_dir: Path, tmp_path: Path) -> None:
    with te.open(data_dir, **settings(tmp_path)) as db:
        db.topic("t").append({"n": 1})
        wait_for_backup(db)
        db.topic("t").append({"n": 2})
    done = asyncio.run(restored(tmp_path))
    assert not done.skips
    with te.open(tmp_path / "aio") as db:
        assert numbers(db.topic("t")) == [1, 2]
        assert db.topic("t").append({"n": 3}).last_seq == 3


async def restored(tmp_path: Path) -> te.Restored:
    return await te.aio.restore(f"file://{tmp_path}/remote", tmp_path / "aio", copy=True)


def test_the_command_says_what_it_restored(data_dir: Path, tmp_path: Path) -> None:
    with te.open(data_dir, **settings(tmp_path)) as db:
        db.topic("t").append({"n": 1})
        wait_for_backup(db)
    command = [sys.executable, "-m", "topics_engine", "restore", f"file://{tmp_path}/remote"]
    for arguments in ([tmp_path / "a", "--copy"], [tmp_path / "b", "--json"]):
        shown = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=True, timeout=LIMIT
        )
        assert json.loads(shown.stdout)["topics"] == 1
    again = subprocess.run(
        [*command, tmp_path / "a"], capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert again.returncode != 0
    assert "not empty" in again.stderr


def test_what_cannot_be_restored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(te.InvalidRequest, match="URL"):
        te.restore("ftp://x", tmp_path / "a")
    with pytest.raises(te.InvalidRequest, match="prefix is empty"):
        te.restore(f"file://{tmp_path}/nothing", tmp_path / "a")
    with pytest.raises(te.InvalidRequest, match="copy=True"):
        te.restore(f"file://{tmp_path}/remote", tmp_path / "a", at=1)
    with pytest.raises(te.InvalidRequest, match="copy must be"):
        te.restore(f"file://{tmp_path}/remote", tmp_path / "a", copy=1)  # type: ignore[arg-type]
    with pytest.raises(te.InvalidRequest, match="copy=True"):
        te.open(tmp_path / "a", at=1)


def test_with_bases_only_a_close_ships_what_was_written(data_dir: Path, tmp_path: Path) -> None:
    only = settings(tmp_path) | {"remote_interval_ms": 0}
    for run in range(3):
        with te.open(data_dir, **only) as db:
            db.topic("t").append({"n": run})
    done = te.restore(f"file://{tmp_path}/remote", tmp_path / "restored")
    assert not done.skips
    with te.open(tmp_path / "restored", **only) as db:
        assert numbers(db.topic("t")) == [0, 1, 2]


def test_a_restored_directory_goes_on_with_the_prefix(data_dir: Path, tmp_path: Path) -> None:
    small = settings(tmp_path) | {"segment_max_events": 10}
    url = f"file://{tmp_path}/remote"
    with te.open(data_dir, **small) as db:
        db.topic("t").append([{"n": n} for n in range(95)])
    # The first base of a process has what the one before it has written.
    with te.open(data_dir, **small) as db:
        until(lambda: db.metrics()["remote_last_base_timestamp_seconds"] > 0, 60)
    done = te.restore(url, tmp_path / "next")
    assert not done.skips
    assert done.remote_bytes > 0
    with te.open(tmp_path / "next", **small) as db:
        # Only that of the active segment.
        assert len(list((tmp_path / "next/topics").glob("*/*.data"))) == 1
        assert numbers(db.topic("t")) == [*range(95)]
        assert db.topic("t").append({"n": 95}).last_seq == 96
        wait_for_backup(db)
    # The directory before it keeps what it has, and ships nothing more.
    with te.open(data_dir, **small) as db:
        db.topic("t").append({"n": -1})
        until(lambda: db.metrics()["remote_state"] == "refused", 60)
        assert numbers(db.topic("t")) == [*range(95), -1]
    with te.open(url, read_only=True) as view:
        assert view.path == url
        assert numbers(view.topic("t")) == [*range(96)]
        assert view.topic("t").state().head_seq == 96


def test_a_view_is_of_a_time_and_leaves_nothing(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    url = f"file://{tmp_path}/remote"
    with te.open(data_dir, **settings(tmp_path)) as db:
        then = write_two_states(db)
        with te.open(url, read_only=True) as view, te.open(url, read_only=True, at=then) as past:
            assert numbers(view.topic("t")) == [1, 2]
            assert numbers(past.topic("t")) == [1]
            folders = list(temporary.iterdir())
            assert len(folders) == 2
            assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
            with pytest.raises(te.Unavailable, match="read"):
                view.topic("t").append({"n": 3})
        assert list(temporary.iterdir()) == []
        with pytest.raises(te.InvalidRequest, match="oldest state"):
            te.open(url, read_only=True, at=0)
        assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("window", "is_kept"), [(0, False), ("never", True), (3_600_000, True)])
def test_the_window_says_what_is_deleted(
    data_dir: Path, tmp_path: Path, window: Any, is_kept: bool
) -> None:
    bases = settings(tmp_path) | {"remote_window_ms": window}

    def first() -> set[Path]:
        return set((tmp_path / "remote").glob(f"{1:016x}/[bpr]*"))

    with te.open(data_dir, **bases) as db:
        db.topic("t").append({"n": 1})
        wait_for_backup(db)
    then, written = datetime.now(UTC), first()
    assert written
    with te.open(data_dir, **bases) as db:
        db.topic("t").append({"n": 2})
        wait_for_backup(db)
        # Deletes follow the base.
        until(lambda: is_kept or db.metrics()["remote_deleted"] > 0, 60)
        assert db.metrics()["remote_last_base_timestamp_seconds"] > 0
    if is_kept:
        assert first() == written
        te.restore(f"file://{tmp_path}/remote", tmp_path / "then", copy=True, at=then)
        with te.open(tmp_path / "then") as db:
            assert numbers(db.topic("t")) == [1]
    else:
        assert len(first()) < len(written)
        with pytest.raises(te.InvalidRequest, match="before the oldest state"):
            te.restore(f"file://{tmp_path}/remote", tmp_path / "then", copy=True, at=then)
