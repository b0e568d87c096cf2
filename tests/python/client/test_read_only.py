"""Directories that are only read: whatever state they are in, by whoever else reads them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.processes import LIMIT

pa = pytest.importorskip("pyarrow")


def fingerprint(root: Path) -> dict[str, Any]:
    """Every name, with what is in it and when it was changed."""
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.stat()
        data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (stat.st_size, stat.st_mtime_ns, data)
    return found


WRITER = """
import os, sys, topics_engine as te
db = te.open(sys.argv[1])
t = db.topic("t")
t.append([{"n": n} for n in range(1000)])
db.topic("gone").append("x")
{rest}
"""
ENDINGS = {
    "closed": "db.close()",
    "crashed": "db.sync(); os._exit(9)",
    "after a checkpoint": 'db.checkpoint(); t.append("late"); db.sync(); os._exit(9)',
}


def seqs(db: te.Database, **asked: Any) -> list[int]:
    stream = pa.RecordBatchReader.from_stream(db.scan("t", **asked))
    found: list[int] = stream.read_all()["seq"].to_pylist()
    return found


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_changes(tmp_path: Path, ending: str) -> None:
    root = tmp_path / "data"
    script = WRITER.replace("{rest}", ENDINGS[ending])
    subprocess.run([sys.executable, "-c", script, str(root)], check=False, timeout=LIMIT)
    count = 1001 if "late" in ENDINGS[ending] else 1000
    before = fingerprint(root)
    with te.open(root, read_only=True) as one, te.open(root, read_only=True) as two:
        for db in (one, two):
            assert db.topic("t").state().count == count
            assert seqs(db) == list(range(1, count + 1))
            assert seqs(db, after=5, to_seq=8, columns=["seq"]) == [6, 7, 8]
            parts = db.split("t", max_records=100)
            assert (parts[0].after, parts[-1].to_seq) == (0, count)
            assert sum(p.records for p in parts) == count
        # Another process reads at the same time; no process writes.
        read = "import sys, topics_engine as te; te.open(sys.argv[1], read_only=True).close()"
        subprocess.run([sys.executable, "-c", read, str(root)], check=True, timeout=LIMIT)
        with pytest.raises(te.Locked):
            te.open(root)
    assert fingerprint(root) == before
    with te.open(root) as db:
        assert db.topic("t").append("more").last_seq == count + 1
        with pytest.raises(te.Locked):
            te.open(root, read_only=True)


def test_writes_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with te.open(root) as db:
        db.topic("t").append([1, 2])
        db.topic("e", durability="ephemeral").append(1)
        db.topic("q", type="queue").append("job")
    before = fingerprint(root)
    with te.open(root, read_only=True) as db:
        writes = [
            lambda: db.topic("t").append(3),
            lambda: db.topic("new").append(3),
            lambda: db.topic("e").append(3),
            lambda: db.topic("t").delete(before=2),
            lambda: db.topic("t").drop(),
            lambda: db.topic("q").append("job"),
            lambda: db.checkpoint(),
        ]
        for write in writes:
            with pytest.raises(te.Unavailable) as refused:
                write()
            assert refused.value.detail == {"reason": "read_only"}
        with pytest.raises(te.Unavailable), db.transaction() as tx:
            tx.append("t", 9)
        assert seqs(db) == [1, 2]
    assert fingerprint(root) == before


def test_a_copy_on_a_read_only_place_is_read(tmp_path: Path) -> None:
    root, copy = tmp_path / "data", tmp_path / "copy"
    with te.open(root) as db:
        db.topic("t").append([1, 2, 3])
    shutil.copytree(root, copy)
    (copy / ".topics.lock").unlink()
    for folder, _, files in os.walk(copy):
        for name in files:
            os.chmod(Path(folder, name), 0o400)
        os.chmod(folder, 0o500)
    with te.open(copy, read_only=True) as db:
        assert seqs(db) == [1, 2, 3]
    assert not (copy / ".topics.lock").exists()
    for folder, _, _ in os.walk(copy):
        os.chmod(folder, 0o700)


def test_no_directory_is_made(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(te.InvalidRequest, match="is no data directory"):
            te.open(path, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_scan_here_is_asked_for_as_over_http(db: te.Database) -> None:
    db.topic("t").append([te.NewRecord(n, tag=f"k{n % 2}") for n in range(10)])
    assert seqs(db, tag="k1", after="earliest") == [2, 4, 6, 8, 10]
    stream = db.scan("t", columns=["data"], data_type="binary")
    table = pa.RecordBatchReader.from_stream(stream).read_all()
    assert [json.loads(d) for d in table["data"].to_pylist()] == list(range(10))
    assert table.schema.field("data").type == pa.binary()
    with pytest.raises(te.InvalidRequest, match="columns"):
        db.scan("t", columns=["x"])
    with pytest.raises(te.NotFound):
        db.split("nothing")
