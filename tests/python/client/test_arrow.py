"""Records as Arrow: one schema, no copy, gaps as rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import topics_engine as te

pa = pytest.importorskip("pyarrow")

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("node", pa.utf8()),
        pa.field("tag", pa.utf8()),
        pa.field("meta", pa.map_(pa.utf8(), pa.utf8())),
        pa.field("data", pa.utf8()),
        pa.field("gap_to", pa.int64()),
        pa.field("gap_reason", pa.utf8()),
    ]
)


def test_round_trip(db: te.Database) -> None:
    t = db.topic("t")
    t.append([te.NewRecord({"i": i}, tag="x" if i % 2 else None, origin="n") for i in range(5000)])
    t.append(te.NewRecord("é", meta={"k": "v", "l": '"\\'}))
    table = t.read(after=0).to_arrow()
    table.validate(full=True)
    assert table.schema.equals(SCHEMA)
    assert table.schema.metadata == {b"topic_id": b"1", b"head_seq": b"5001", b"to_seq": b"5001"}
    assert table.num_rows == 5001
    records = [r for r in t.read(after=0) if isinstance(r, te.Record)]
    assert table["seq"].to_pylist() == [r.seq for r in records]
    assert table["data"].to_pylist() == [r.stored.decode() for r in records]
    assert table["tag"].to_pylist() == [r.tag for r in records]
    assert table["node"].to_pylist() == [r.origin for r in records]
    times = [datetime.fromtimestamp(r.ts / 1000, UTC) for r in records]
    assert table["ts"].to_pylist() == times
    assert table["meta"][-1].as_py() == [("k", "v"), ("l", '"\\')]
    assert table["meta"][0].as_py() is None
    assert set(table["topic"].to_pylist()) == {"t"}


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_scan_has_the_same_rows(db: te.Database, codec: Any) -> None:
    t = db.topic("t")
    t.append([te.NewRecord({"i": i}, tag="x" if i % 2 else None) for i in range(5000)])
    plain = pa.RecordBatchReader.from_stream(db.scan("t")).read_all()
    packed = pa.RecordBatchReader.from_stream(db.scan("t", compression=codec)).read_all()
    assert packed.num_rows == 5000
    assert packed.equals(plain)
    with pytest.raises(te.InvalidRequest, match=r"compression.*'lz4' or 'zstd'"):
        db.scan("t", compression="gzip")  # type: ignore[typeddict-item]


def test_binary_records(db: te.Database) -> None:
    t = db.topic("t")
    t.append_batch([b"\xff", b"", b"a"])
    table = t.read().to_arrow()
    assert table.schema.field("data").type == pa.binary()
    assert table["data"].to_pylist() == [b"\xff", b"", b"a"]
    mixed = db.topic("m")
    mixed.append([1, b"\xff"])
    with pytest.raises(te.InvalidRequest, match=r"record 2 is binary.*data_type=binary"):
        mixed.read().to_arrow()


def test_a_gap_is_a_row(db: te.Database) -> None:
    t = db.topic("t", cap_records=3)
    for i in range(10):
        t.append(i)
    table = t.read(after=0).to_arrow()
    table.validate(full=True)
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["seq"], first["gap_to"], first["gap_reason"]) == (1, 7, "cap")
    assert first["data"] is None
    assert first["ts"] is None
    assert table["seq"].to_pylist() == [1, 8, 9, 10]
    skipped = t.read(after=0, gaps="skip")
    assert skipped.to_arrow()["seq"].to_pylist() == [8, 9, 10]
    assert [(g.first, g.last) for g in skipped.gaps] == [(1, 7)]
    with pytest.raises(te.DataLoss):
        t.read(after=0, gaps="raise").to_arrow()


def test_ranges(db: te.Database) -> None:
    t = db.topic("t")
    t.append([te.NewRecord(i, tag=f"k:{i % 2}") for i in range(1, 101)])
    assert t.read(after=90, to_seq=95).to_arrow()["seq"].to_pylist() == [91, 92, 93, 94, 95]
    assert t.read(after=90, limit=3).to_arrow()["seq"].to_pylist() == [91, 92, 93]
    assert t.read(after=90, tag="k:0").to_arrow()["seq"].to_pylist() == [92, 94, 96, 98, 100]
    assert t.read(te.LATEST).to_arrow().num_rows == 0
    assert t.read(after=100).to_arrow().num_rows == 0
    read = t.read(after=0)
    next(read)
    with pytest.raises(te.InvalidRequest):
        read.to_arrow()


def test_a_stream_is_taken_once_and_outlives_its_maker(db: te.Database) -> None:
    t = db.topic("t")
    t.append(list(range(10)))
    stream = db.scan("t")
    assert (stream.topic_id, stream.to_seq) == (1, 10)
    reader = pa.RecordBatchReader.from_stream(stream)
    with pytest.raises(ValueError, match="has been read"):
        pa.RecordBatchReader.from_stream(stream)
    del stream
    t.append("after the scan began")
    assert reader.read_all()["seq"].to_pylist() == list(range(1, 11))
    # A capsule that nobody takes frees what it holds.
    db.scan("t").__arrow_c_stream__()


def test_polars(db: te.Database) -> None:
    polars = pytest.importorskip("polars")
    t = db.topic("t")
    t.append([1, 2, 3])
    frame = t.read().to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert frame["data"].to_list() == ["1", "2", "3"]
    assert t.read(limit=2).to_polars()["seq"].to_list() == [1, 2]


def test_pandas(db: te.Database) -> None:
    pytest.importorskip("pandas")
    t = db.topic("t")
    t.append([1, 2, 3])
    assert list(t.read().to_pandas()["seq"]) == [1, 2, 3]
