"""A check of every byte finds every byte that is wrong."""

from __future__ import annotations

import json
import logging
import queue
import shutil
import threading
from pathlib import Path

import pytest

import topics_engine as te
from support.server import UNFINISHED
from topics_engine import _core


def build(path: Path) -> None:
    """Segments with tags, deletes and metadata, and a log that was closed."""
    with te.open(path, segment_max_events=50) as db:
        for name in ("a", "b"):
            t = db.topic(name)
            t.append(
                [te.NewRecord({"i": i}, tag=f"k:{i % 3}", meta={"m": "v"}) for i in range(120)]
            )
            db.sync()
            db.checkpoint()
            t.delete(tag="k:1")
            db.sync()
            db.checkpoint()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "data"
    build(path)
    return path


def files(path: Path, pattern: str) -> list[Path]:
    return sorted(p for p in path.rglob(pattern) if p.stat().st_size)


def test_a_whole_directory_is_whole(corpus: Path) -> None:
    found = te.verify(corpus)
    assert found.ok
    assert bool(found) is True
    assert found.problems == ()
    assert found.records >= 240
    assert found.files > 10
    assert found.bytes > 10_000
    assert te.verify(corpus) == found


@pytest.mark.parametrize("kind", ["*.data", "*.idx", "*.del", "*.tags", "snapshot.*.bin", "STORE"])
def test_no_flipped_byte_passes(corpus: Path, tmp_path: Path, kind: str) -> None:
    victims = files(corpus, kind)
    assert victims, f"the corpus has no {kind}"
    checked = 0
    for victim in (victims[0], victims[-1]):
        size = victim.stat().st_size
        # The last bytes of an index that still grows are not used.
        last = size - 9 if kind == "*.idx" else size - 1
        for at in sorted({0, 5, size // 3, size // 2, size - 9, last}):
            copy = tmp_path / f"{checked}"
            shutil.copytree(corpus, copy)
            target = copy / victim.relative_to(corpus)
            raw = bytearray(target.read_bytes())
            raw[at] ^= 0x40
            target.write_bytes(raw)
            try:
                found = te.verify(copy)
            except te.TopicsError as error:
                assert error.code in ("corrupt", "version"), error  # noqa: PT017
            else:
                assert not found.ok, f"{victim.name} at {at}"
                named = [str(p["file"]) for p in found.problems]
                assert any(Path(n).name == victim.name or kind != "*.data" for n in named), named
            checked += 1
            shutil.rmtree(copy)


def test_a_missing_file_is_found(corpus: Path, tmp_path: Path) -> None:
    for kind in ("*.data", "*.idx", "*.del", "*.tags", "*.log", "CURRENT", "STORE"):
        copy = tmp_path / "copy"
        shutil.copytree(corpus, copy)
        files(copy, kind)[-1].unlink()
        try:
            assert not te.verify(copy).ok, kind
        except te.InvalidRequest as error:
            assert kind == "STORE", error  # noqa: PT017
        shutil.rmtree(copy)


def test_damage_in_the_middle_of_the_log(data_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with te.open(data_dir) as db:
        t = db.topic("t", durability="fsync")
        for i in range(50):
            t.append({"text": f"record number {i:03}"})
        shutil.copytree(data_dir, copy, ignore=UNFINISHED)
    assert te.verify(copy).ok
    (log,) = [p for p in copy.rglob("*") if p.is_file() and b"record number 020" in p.read_bytes()]
    raw = bytearray(log.read_bytes())
    raw[raw.index(b"record number 020")] ^= 1
    log.write_bytes(raw)
    found = te.verify(copy)
    assert not found.ok
    assert [Path(str(p["file"])).name for p in found.problems] == [log.name]
    with pytest.raises(te.Corrupt) as caught:
        te.open(copy)
    assert Path(caught.value.file).name == log.name
    assert caught.value.offset == found.problems[0]["offset"]


def test_an_open_database_checks_its_records(db: te.Database) -> None:
    db.topic("t").append(list(range(100)))
    db.topic("u").append_batch([b"x"] * 10)
    db.checkpoint()
    for found in (db.verify(), te.verify(db.path)):
        assert found.ok
        assert found.records >= 110


def test_a_directory_is_checked_while_it_is_written(db: te.Database) -> None:
    stop = threading.Event()

    def write() -> None:
        t = db.topic("busy")
        while not stop.is_set():
            t.append_batch([b"x" * 200] * 50)
            db.checkpoint()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        for _ in range(20):
            found = te.verify(db.path)
            assert found.ok, found.problems
    finally:
        stop.set()
        writer.join(60)


def test_a_check_changes_nothing_and_says_how_far_it_is(corpus: Path) -> None:
    def shape() -> list[tuple[str, int, int]]:
        every = sorted(p for p in corpus.rglob("*") if p.is_file())
        return [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in every]

    before, seen = shape(), []
    (corpus / ".topics.lock").unlink(missing_ok=True)
    found = json.loads(_core.verify(str(corpus), lambda *p: seen.append(p)))
    assert [x for x in before if not x[0].endswith(".topics.lock")] == shape()
    assert seen == sorted(seen)
    assert seen[-1][:2] == (found["files"], found["bytes"])
    assert all(done <= total for _, done, total, _ in seen)


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(te.InvalidRequest):
            te.verify(path)
    assert not (tmp_path / "none").exists()
    assert list((tmp_path / "empty").iterdir()) == []


class Told(logging.Handler):
    """The records of a logger, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.records: queue.Queue[logging.LogRecord] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put(record)


def test_what_recovery_passes_over_is_logged(corpus: Path, tmp_path: Path) -> None:
    live = shutil.copytree(corpus, tmp_path / "data")
    newest = files(live, "snapshot.*.bin")[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"\0\0")
    told, logger = Told(), logging.getLogger("topics_engine.storage")
    logger.addHandler(told)
    try:
        with te.open(live) as db:
            assert db.topic("a").state().head_seq == 120
        while "an older one is used" not in (record := told.records.get(timeout=60)).getMessage():
            pass
    finally:
        logger.removeHandler(told)
    assert (record.levelname, record.name) == ("WARNING", "topics_engine.storage")
