"""A prefix of an object store, read without a data directory and without a server."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support import cold
from support.waiting import until
from topics_engine.cli import main

pa = pytest.importorskip("pyarrow")

RECORDS = 200


def filled(tmp_path: Path) -> str:
    """A directory, whose newest segments are not archived, and its prefix."""
    url = f"file://{tmp_path}/remote"
    settings: te.Settings = {
        "remote_url": url,
        "segment_max_events": 10,
        "remote_base_interval_ms": 100,
        "pack_bytes": 4000,
    }
    with te.open(tmp_path / "db", **settings) as db:
        topic = db.topic("orders", durability="fsync")
        topic.append([te.NewRecord({"n": n}, tag=f"t:{n % 3}") for n in range(RECORDS)])
        db.checkpoint()
        topic.delete(seqs=[5, 17, 18])
        db.checkpoint()
        topic.append([te.NewRecord({"n": n}, tag="new") for n in range(RECORDS, RECORDS + 15)])
        db.checkpoint()
        wait_for_base(url, db)
    return url


def wait_for_base(url: str, db: te.Database) -> None:
    """Waits until sealed segments are in packs, and everything is shipped."""

    def is_whole() -> bool:
        db.checkpoint()
        try:
            with te.open(url, read_only=True) as view:
                has_all = view.topic("orders").state().head_seq == RECORDS + 15
        except (te.InvalidRequest, te.NotFound):
            return False
        return has_all and db.metrics()["packs"] > 0

    until(is_whole, 60)


def rows(db: te.Database, **how: Any) -> list[Any]:
    found = db.topic("orders").read(after=0, limit=None, **how)
    return [(r.seq, r.data, r.tag, r.time) for r in found if isinstance(r, te.Record)]


def table(db: te.Database, **asked: Any) -> Any:
    return pa.RecordBatchReader.from_stream(db.scan("orders", **asked)).read_all()


def test_a_prefix_reads_like_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = filled(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with te.open(tmp_path / "db", read_only=True, remote_url=url) as db:
        source = rows(db)
        typed = table(db, schema={"n": "int64"})
        columns = table(db)
        tagged = rows(db, tag="t:1")
    # No reader needs the directory.
    shutil.rmtree(tmp_path / "db")
    with te.open(url, read_only=True) as view:
        head = view.topic("orders").state().head_seq
        assert head == RECORDS + 15
        assert rows(view) == source
        assert rows(view, tag="t:1") == tagged
        # What was fetched of indexes is kept while the view is open.
        for kind in ("idx", "tags"):
            assert len(list((tmp_path / "temporary").glob(f"*/topics/*/*.{kind}"))) > 5
        assert table(view, schema={"n": "int64"}).equals(typed)
        assert table(view).equals(columns)
        parts = view.split("orders", max_records=50)
        assert (parts[0].after, parts[-1].to_seq) == (0, head)
        assert [t.topic for t in view.topics()] == ["orders"]
        assert view.path == url
        with pytest.raises(te.Unavailable, match="read only"):
            view.topic("orders").append({"n": 1})
        with pytest.raises(te.Unavailable, match="read only"):
            view.topic("other").append({"n": 1})


def test_aio_reads_a_prefix(tmp_path: Path) -> None:
    url = filled(tmp_path)

    async def run() -> list[int]:
        async with te.aio.open(url, read_only=True) as view:
            found = view.topic("orders").read(after=100, limit=None)
            return [r.data["n"] async for r in found if isinstance(r, te.Record)]

    assert asyncio.run(run()) == list(range(100, RECORDS + 15))


def test_the_command_line_reads_a_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = filled(tmp_path)

    def run(*argv: str) -> tuple[int, list[Any]]:
        code = main(["--data-dir", url, *argv])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    code, (topic,) = run("ls")
    assert code == 0
    assert topic["topic"] == "orders"
    code, last = run("tail", "orders", "-n", "2")
    assert code == 0
    assert [r["data"]["n"] for r in last] == [RECORDS + 13, RECORDS + 14]
    code, (said,) = run("export", "orders", str(tmp_path / "out.parquet"))
    assert code == 0
    assert said["records"] == RECORDS + 15 - 3
    assert main(["--data-dir", url, "drop", "orders", "--yes"]) == 1


def test_what_is_no_prefix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(te.InvalidRequest, match="read_only=True"):
        te.open(f"file://{tmp_path}/remote")
    with pytest.raises(te.InvalidRequest, match="there is no directory"):
        te.open(f"file://{tmp_path}/remote", read_only=True)
    assert not (tmp_path / "remote").exists()
    (tmp_path / "remote").mkdir()
    with pytest.raises(te.InvalidRequest, match="the prefix is empty"):
        te.open(f"file://{tmp_path}/remote", read_only=True)
    with pytest.raises(te.InvalidRequest):
        te.open("file://remote", read_only=True)


def test_an_object_that_is_gone_is_an_error(tmp_path: Path) -> None:
    url = filled(tmp_path)
    for pack in cold.packs(tmp_path / "remote"):
        pack.unlink()
    with pytest.raises(te.Unavailable), te.open(url, read_only=True, cold_timeout_ms=500) as view:
        rows(view)


def archive_of_long_records(tmp_path: Path, n: int) -> str:
    """A prefix with `n` records of 10 000 bytes in packs, their segments of at most 4 MiB."""
    url = f"file://{tmp_path}/remote"
    payload = b"x" * 10_000

    def is_there() -> bool:
        try:
            with te.open(url, read_only=True) as view:
                return view.metrics()["pack_bytes"] > n * len(payload) * 8 // 10
        except te.InvalidRequest:
            return False

    settings: te.Settings = {
        "remote_url": url,
        "segment_max_bytes": 4 << 20,
        "pack_bytes": 4 << 20,
        "remote_base_interval_ms": 100,
    }
    with te.open(tmp_path / "db", **settings) as db:
        topic = db.topic("t", durability="disk")
        for _ in range(0, n, 500):
            topic.append([payload] * 500)
        db.checkpoint()
        until(is_there, 60)
    return url


def test_a_scan_of_an_archive_larger_than_the_memory_waits_for_none(tmp_path: Path) -> None:
    n, memory = 6_000, 16 << 20
    url = archive_of_long_records(tmp_path, n)
    with te.open(url, read_only=True, cold_memory_bytes=memory) as view:
        stream = pa.RecordBatchReader.from_stream(view.scan("t"))
        assert sum(batch.num_rows for batch in stream) == n
        metrics = view.metrics()
    assert metrics["cold_read_bytes"] > 3 * memory
    assert metrics["cold_memory_waits"] == 0


def test_a_read_of_one_record_requests_nothing_ahead(tmp_path: Path) -> None:
    url = archive_of_long_records(tmp_path, 2_000)

    def requested(view: te.Database, seq: int) -> int:
        before = view.metrics()["cold_block_misses"]
        assert [r.seq for r in view.topic("t").read(after=seq - 1, limit=1)] == [seq]
        return view.metrics()["cold_block_misses"] - before

    with te.open(url, read_only=True) as view:
        # The segment's index, and a record that lies in one block or in two.
        assert max(requested(view, seq) for seq in (100, 600, 1100)) <= 3


def test_a_table_that_cannot_be_read_to_its_end_raises_the_error_of_the_engine(
    tmp_path: Path,
) -> None:
    pytest.importorskip("polars")
    url = archive_of_long_records(tmp_path, 6_000)
    for pack in cold.packs(tmp_path / "remote")[4:8]:
        pack.unlink()
    with te.open(url, read_only=True, cold_timeout_ms=500) as view:
        for read in (lambda t: t.read().to_arrow(), lambda t: t.read().to_polars()):
            with pytest.raises(te.Unavailable, match="does not exist") as caught:
                read(view.topic("t"))
            assert caught.value.code == "cold_unavailable"
        # A consumer of the stream itself has the message, and the stream the error.
        stream = view.scan("t")
        with pytest.raises(pa.ArrowInvalid, match="does not exist"):
            pa.RecordBatchReader.from_stream(stream).read_all()
        with pytest.raises(te.Unavailable):
            stream.check()
