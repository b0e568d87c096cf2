"""A store that is not mounted, is another one, hangs, or has what a copy of the directory wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support import cold
from support.processes import child
from support.waiting import until
from topics_engine.cli import main
from topics_engine.cli.exits import Exit

PATIENCE = 120.0
"""Seconds after which a call that should end counts as one that never does."""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def settings(archive: Path, **more: Any) -> Any:
    return cold.settings(archive.as_uri()) | {"cold_timeout_ms": 500} | more


def local(data_dir: Path) -> set[str]:
    return {path.name for path in data_dir.glob("topics/*/*.data")}


def state(db: te.Database) -> str:
    found: str = db.metrics()["remote_state"]
    return found


class Background:
    """A call on a thread, which is not joined for ever."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.outcome = call()
        except te.TopicsError as e:
            self.outcome = e

    def end(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call does not end"
        return self.outcome


@pytest.fixture
def hang() -> Iterator[Callable[[Path], None]]:
    """Makes every use of a file hang: a FIFO without a writer stands for a server that is gone."""
    fifos: list[Path] = []

    def make(path: Path) -> None:
        path.rename(path.with_name(path.name + ".real"))
        os.mkfifo(path)
        fifos.append(path)

    yield make
    for fifo in fifos:
        fifo.with_name(fifo.name + ".real").rename(fifo.with_name(fifo.name + ".back"))
        with contextlib.suppress(OSError):  # nothing reads it
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def test_a_folder_that_is_not_mounted_costs_no_record(data_dir: Path, archive: Path) -> None:
    with te.open(data_dir, **settings(archive)) as db:
        cold.make_cold(db)
    before = local(data_dir)
    away = archive.with_name("away")
    archive.rename(away)
    with te.open(data_dir, **settings(archive)) as db:
        topic = db.topic("t")
        topic.append([{"n": n} for n in range(cold.RECORDS, 2 * cold.RECORDS)])
        db.checkpoint()
        until(lambda: state(db) == "refused")
        for _ in range(3):
            topic.append({"n": -1})
            db.checkpoint()
        assert before <= local(data_dir)
        assert not (archive / "HEAD").exists()
        with pytest.raises(te.Unavailable, match="check the remote"):
            list(topic.read(after=0))
        assert cold.numbers(topic.read(after=cold.RECORDS))[0] == cold.RECORDS
    shutil.rmtree(archive, ignore_errors=True)
    away.rename(archive)
    with te.open(data_dir, **settings(archive)) as db:
        found = cold.numbers(db.topic("t").read(after=0))
        assert found == [*range(2 * cold.RECORDS), -1, -1, -1]
        until(lambda: state(db) == "ok")


def test_a_directory_that_was_put_back_is_refused(data_dir: Path, archive: Path) -> None:
    with te.open(data_dir, **settings(archive)) as db:
        cold.make_cold(db)
    older = data_dir.with_name("older")
    shutil.copytree(data_dir, older)
    with te.open(data_dir, **settings(archive)) as db:
        db.topic("t").append([{"n": 7}] * 40)
        cold.wait_until_cold(db)
    written = sorted(archive.rglob("*"))
    with te.open(older, **settings(archive)) as db:
        db.topic("t").append([{"n": 8}] * 40)
        db.checkpoint()
        until(lambda: state(db) == "refused")
        found = cold.numbers(db.topic("t").read(after=0))
        assert found == [*range(cold.RECORDS), *[8] * 40]
    assert sorted(archive.rglob("*")) == written


def test_a_close_answers_readers_while_the_store_hangs(
    data_dir: Path, archive: Path, hang: Callable[[Path], None]
) -> None:
    with te.open(data_dir, **settings(archive)) as db:
        cold.make_cold(db)
    hang(archive / "HEAD")
    for pack in cold.packs(archive):
        hang(pack)
    with te.open(data_dir, read_only=True, **settings(archive)) as view:
        other = Background(lambda: list(view.topic("t").read(after=0)))
        assert isinstance(other.end(), te.Unavailable)
    db = te.open(data_dir, **settings(archive))
    topic = db.topic("t")
    topic.append([{"n": 9}] * 40)
    db.checkpoint()
    read = Background(lambda: list(topic.read(after=0)))
    assert isinstance(read.end(), te.Unavailable)
    read = Background(lambda: list(topic.read(after=0)))
    Background(db.close).end()
    assert isinstance(read.end(), te.TopicsError)
    with te.open(data_dir) as db:
        assert cold.numbers(db.topic("t").read(after=cold.RECORDS)) == [9] * 40


@pytest.mark.parametrize("lost", [False, True])
def test_a_file_that_cannot_be_read_stops_no_other_topic(
    data_dir: Path, archive: Path, lost: bool
) -> None:
    with te.open(data_dir, segment_max_events=10) as db:
        for name in "abc":
            db.topic(name).append([{"n": n} for n in range(cold.RECORDS)])
        db.checkpoint()
    victim = sorted(data_dir.glob("topics/*/*.data"))[2]
    victim.rename(data_dir.with_name("victim"))
    if not lost:
        victim.mkdir()  # a read of it fails
    with te.open(data_dir, **settings(archive)) as db:
        folders = [p for p in data_dir.glob("topics/*") if p != victim.parent]

        def has_cooled() -> bool:
            db.topic("other").append(1)
            db.checkpoint()
            return all(len(list(folder.glob("*.data"))) <= 2 for folder in folders)

        until(has_cooled)
        until(lambda: (archive / "HEAD").exists() and list(archive.glob("*/b*")))


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("wal_file_min", 2 << 30),
        ("wal_file_max", 2 << 30),
        ("segment_max_bytes", 1 << 30),
        ("pack_bytes", 1 << 30),
        ("cold_timeout_ms", 86_400_000),
        ("remote_interval_ms", 316_224_000_000),
        ("remote_base_interval_ms", 316_224_000_000),
        ("remote_window_ms", 316_224_000_000),
        ("staging_wait_ms", 86_400_000),
    ],
)
def test_a_setting_above_its_bound_is_refused(
    data_dir: Path, archive: Path, name: str, most: int
) -> None:
    for value in (most + 1, 2**64 - 1):
        with pytest.raises(te.InvalidRequest, match=f"{name} is {value}: .* at most {most}"):
            te.open(data_dir, **settings(archive, **{name: value}))
    if not name.startswith("wal_file"):  # of that size
        te.open(data_dir, **settings(archive, **{name: most})).close()


def test_an_open_fetches_the_index_of_a_cold_segment(data_dir: Path, archive: Path) -> None:
    """Recovery needs an index that is lost, and the log was not closed."""
    with te.open(data_dir, **settings(archive)) as db:
        cold.make_cold(db)
    code = """
        import json, os, sys, topics_engine as te
        db = te.open(sys.argv[1], **json.loads(sys.argv[2]))
        db.topic("t").delete(before=15)
        db.sync()
        os._exit(7)
    """
    options = json.dumps(settings(archive, checkpoint_interval_ms=3_600_000))
    with child([sys.executable, "-c", textwrap.dedent(code), data_dir, options]) as process:
        assert process.wait() == 7
    # The second segment has live records below the bound of the delete.
    for index in data_dir.glob("topics/*/*.idx"):
        index.unlink()
    with te.open(data_dir, **settings(archive)) as db:
        assert cold.numbers(db.topic("t").read(after=0)) == list(range(14, cold.RECORDS))


def test_a_lost_file_of_deletes_is_found_and_mended(data_dir: Path, archive: Path) -> None:
    with te.open(data_dir, **settings(archive)) as db:
        cold.make_cold(db)
        db.topic("t").delete(seqs=[3, 5])
        db.sync()

        def has_cooled() -> bool:
            db.checkpoint()
            return len(list(data_dir.glob("topics/1/*.data"))) <= 1

        until(has_cooled)
        # How many of its segments are cold depends on how long that took.
        db.topic("other").drop()
    assert te.verify(data_dir).cold_records == 48
    sorted(data_dir.glob("topics/*/*.del"))[0].unlink()
    found = te.verify(data_dir)
    assert not found.ok
    assert ".del" in found.problems[0]["file"]
    with pytest.raises(te.Corrupt, match="topics repair"), te.open(data_dir, **settings(archive)):
        pass
    assert main(["--data-dir", str(data_dir), "repair", "--yes"]) == Exit.OK
    with te.open(data_dir, **settings(archive)) as db:
        found = list(db.topic("t").read(after=0))
        assert isinstance(found[0], te.Gap)
        assert (found[0].first, found[0].last, found[0].reason) == (1, 10, "corrupt")
        assert cold.numbers(found) == list(range(10, cold.RECORDS))


def test_a_repair_takes_deletes_from_the_object_store(
    data_dir: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with te.open(data_dir, **settings(archive)) as db:
        cold.make_cold(db)
        db.topic("t").delete(seqs=[3, 5])
        cold.make_cold(db)  # what is archived next publishes them
        before = cold.numbers(db.topic("t").read(after=0))
        assert len(before) == 2 * cold.RECORDS - 2
    sorted(data_dir.glob("topics/*/*.del"))[0].unlink()
    repair = ["--data-dir", str(data_dir), "repair", "--yes"]
    monkeypatch.setenv("TOPICS_REMOTE_URL", settings(archive)["remote_url"])
    assert main(repair) == Exit.OK
    assert ".del" in capsys.readouterr().out
    with te.open(data_dir, **settings(archive)) as db:
        assert cold.numbers(db.topic("t").read(after=0)) == before


def test_a_repair_gives_up_records_whose_objects_are_gone(
    data_dir: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with te.open(data_dir, **settings(archive)) as db:
        cold.make_cold(db)
    repair = ["--data-dir", str(data_dir), "repair"]
    assert main(repair) == Exit.OK
    assert "no remote_url is set" in capsys.readouterr().out
    monkeypatch.setenv("TOPICS_REMOTE_URL", settings(archive)["remote_url"])
    assert main(repair) == Exit.OK
    away = archive.with_name("away")
    archive.rename(away)
    assert main([*repair, "--yes"]) == Exit.OK
    assert "the prefix is empty" in capsys.readouterr().out
    shutil.rmtree(archive)
    away.rename(archive)
    lost = cold.packs(archive)[0]
    lost.unlink()
    assert main(repair) == Exit.CORRUPT
    out = capsys.readouterr().out
    assert lost.name in out
    assert "corrupt" in out
    assert main([*repair, "--yes"]) == Exit.OK
    with te.open(data_dir, **settings(archive)) as db:
        found = list(db.topic("t").read(after=0))
        gaps = [r for r in found if isinstance(r, te.Gap)]
        assert [g.reason for g in gaps] == ["corrupt"]
        count = gaps[0].last + 1 - gaps[0].first
        assert len(cold.numbers(found)) == cold.RECORDS - count
    assert main(repair) == Exit.OK


def test_deleted_records_free_their_space_though_nothing_is_written(data_dir: Path) -> None:
    options: Any = {"segment_max_bytes": 1 << 16, "checkpoint_interval_ms": 200}
    with te.open(data_dir, **options) as db:
        topic = db.topic("t")
        for _ in range(10):
            topic.append([{"x": "y" * 400}] * 200)
        until(lambda: len(local(data_dir)) > 8)
        topic.delete(before=topic.state().head_seq + 1)
        until(lambda: len(local(data_dir)) <= 1)
