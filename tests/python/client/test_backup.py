"""Backups of a database that is open, and clones of a directory that is not."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.server import Server
from topics_engine.cli import main


def filled(path: Path) -> te.Database:
    db = te.open(path, segment_max_events=8)
    db.topic("log", durability="fsync").append([{"n": n} for n in range(30)])
    db.queue("jobs").append({"job": 1})
    return db


def payloads(path: Path) -> list[Any]:
    with te.open(path, read_only=True) as db:
        found = db.topic("log").read(after=0)
        return [record.data for record in found if isinstance(record, te.Record)]


THIRTY = [{"n": n} for n in range(30)]


def test_a_backup_opens_and_goes_on(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with filled(tmp_path / "db") as db:
        made = db.backup(copy)
        assert (made.dir, made.fetched) == (str(copy), 0)
        assert made.linked > 0
        assert made.copied > 0
        assert made.copied_bytes > 0
        db.topic("log").append({"n": 30})
        with pytest.raises(te.InvalidRequest, match="not empty"):
            db.backup(copy)
        with pytest.raises(te.InvalidRequest, match="inside of its source"):
            db.backup(tmp_path / "db" / "copy")
        with pytest.raises(te.InvalidRequest, match="dir must be a path"):
            db.backup(5)  # type: ignore[arg-type]
    assert te.verify(copy)
    assert payloads(copy) == THIRTY
    with te.open(copy) as db:
        # The source has given 31 to another record.
        assert db.topic("log").append({"n": "other"}).last_seq == 31 + 2**32
        job = db.queue("jobs").claim("worker")[0]
        assert job.data == {"job": 1}
    assert payloads(tmp_path / "db") == [*THIRTY, {"n": 30}]


def test_aio_makes_backups_and_clones(tmp_path: Path) -> None:
    async def run() -> None:
        async with te.aio.open(tmp_path / "db") as db:
            await db.topic("log", durability="fsync").append(THIRTY)
            made = await db.backup(tmp_path / "copy")
            assert made.dir == str(tmp_path / "copy")
        other = await te.aio.clone(tmp_path / "copy", tmp_path / "other")
        assert other.dir == str(tmp_path / "other")

    asyncio.run(run())
    assert payloads(tmp_path / "copy") == payloads(tmp_path / "other") == THIRTY


def test_a_clone_leaves_its_source_alone(tmp_path: Path) -> None:
    db = filled(tmp_path / "db")
    with pytest.raises(te.Locked):
        te.clone(tmp_path / "db", tmp_path / "copy")
    db.close()
    names = {p: p.stat().st_mtime_ns for p in (tmp_path / "db").rglob("*") if p.is_file()}
    assert te.clone(tmp_path / "db", tmp_path / "copy").linked > 0
    assert names == {p: p.stat().st_mtime_ns for p in names}
    with te.open(tmp_path / "copy") as copy:
        copy.topic("log").delete(before=20)
        copy.checkpoint()
    assert payloads(tmp_path / "db") == THIRTY
    with pytest.raises(te.InvalidRequest, match="no data directory"):
        te.clone(tmp_path / "none", tmp_path / "other")
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "other").exists()


def test_an_unfinished_copy_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "db").close()
    te.clone(tmp_path / "db", tmp_path / "copy")
    (tmp_path / "copy" / ".topics.incomplete").touch()
    for read_only in (False, True):
        with pytest.raises(te.InvalidRequest, match="unfinished backup or clone"):
            te.open(tmp_path / "copy", read_only=read_only)
    with pytest.raises(te.InvalidRequest, match="unfinished"):
        te.verify(tmp_path / "copy")
    with pytest.raises(te.InvalidRequest, match="unfinished"):
        te.clone(tmp_path / "copy", tmp_path / "other")


def test_a_server_makes_backups_below_its_directory(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    with Server(tmp_path / "db", backup_dir=str(backups)) as server, te.connect(server.url) as db:
        db.topic("log", durability="fsync").append(THIRTY)
        assert db.backup("monday").dir == "monday"
        for bad in ("", ".", "..", "../out", "a/../../out", "/tmp/out", str(backups / "abs")):
            with pytest.raises(te.InvalidRequest, match="below the server's backup_dir"):
                db.backup(bad)
        with pytest.raises(te.InvalidRequest, match="not empty"):
            db.backup("monday")
        with pytest.raises(te.InvalidRequest, match="there is no folder"):
            db.backup("none/tuesday")
    assert payloads(backups / "monday") == THIRTY
    assert sorted(os.listdir(tmp_path)) == ["backups", "db"]


def test_a_backup_into_a_prefix_is_read_and_restored(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/monday"
    with filled(tmp_path / "db") as db:
        made = db.backup(url)
        assert (made.dir, made.linked, made.fetched) == (url, 0, 0)
        assert made.copied > 0
        assert made.copied_bytes > 0
        db.topic("log").append({"n": 30})
        with pytest.raises(te.Unavailable, match="set another prefix"):
            db.backup(url)
        with pytest.raises(te.InvalidRequest, match=r"dir .*the URL"):
            db.backup("file://relative")
        for inside in ("db", "db/copy"):
            with pytest.raises(te.InvalidRequest, match="inside of its source"):
                db.backup(f"file://{tmp_path}/{inside}")
        assert not (tmp_path / "db" / "copy").exists()
    with te.open(url, read_only=True) as view:
        found = view.topic("log").read(after=0)
        assert [r.data for r in found if isinstance(r, te.Record)] == THIRTY
    te.restore(url, tmp_path / "copy", copy=True)
    assert te.verify(tmp_path / "copy")
    assert payloads(tmp_path / "copy") == THIRTY
    with te.open(tmp_path / "copy") as db:
        # The source has given 31 to another record.
        assert db.topic("log").append({"n": "other"}).last_seq > 2**32
        assert db.queue("jobs").claim("worker")[0].data == {"job": 1}


def test_a_server_makes_backups_below_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    below = f"file://{tmp_path}/backups"
    with Server(tmp_path / "db", backup_dir=below) as server, te.connect(server.url) as db:
        db.topic("log", durability="fsync").append(THIRTY)
        assert db.backup("monday").dir == "monday"
        for bad in ("", ".", "..", "../out", "a/../../out", "/tmp/out", "a?b", "a%2e", "x" * 300):
            with pytest.raises(te.InvalidRequest, match="below the server's backup_dir"):
                db.backup(bad)
    with te.open(f"{below}/monday", read_only=True) as view:
        assert view.topic("log").state().head_seq == 30
    assert sorted(os.listdir(tmp_path / "backups")) == ["monday"]


def test_a_server_without_a_directory_makes_none(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "db") as server,
        te.connect(server.url) as db,
        pytest.raises(te.InvalidRequest, match="TOPICS_BACKUP_DIR"),
    ):
        db.backup("monday")


def test_the_command_line_makes_backups_and_clones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "db").close()

    def run(*argv: str) -> Any:
        code = main(argv)
        out = capsys.readouterr()
        return code, json.loads(out.out) if out.out else out.err

    code, made = run("--data-dir", str(tmp_path / "db"), "backup", str(tmp_path / "copy"))
    assert code == 0
    assert made["dir"] == str(tmp_path / "copy")
    code, made = run("clone", str(tmp_path / "copy"), str(tmp_path / "other"))
    assert code == 0
    assert made["linked"] > 0
    assert payloads(tmp_path / "other") == THIRTY
    code, said = run("clone", str(tmp_path / "copy"), str(tmp_path / "other"))
    assert code == 2
    assert "not empty" in said
    code, said = run("--data-dir", str(tmp_path / "db"), "clone", "a", "b")
    assert code == 2
    assert "SOURCE TARGET" in said
    (tmp_path / "backups").mkdir()
    with Server(tmp_path / "db", backup_dir=str(tmp_path / "backups")) as server:
        code, made = run("--url", server.url, "backup", "tuesday")
        assert code == 0
        assert made["dir"] == "tuesday"
    assert payloads(tmp_path / "backups" / "tuesday") == THIRTY
