"""Reads: ends, filters, gaps, cursors, tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

import topics_engine as te

from .adapter import all_of, datas


async def test_a_read_ends_at_the_head_of_when_it_began(db: Any) -> None:
    t = db.topic("t")
    await t.append([1, 2])
    read = t.read(after=0)
    first = await anext(read)
    await t.append(3)
    assert [first.data, *datas(await all_of(read))] == [1, 2]
    assert read.cursor == 2
    assert datas(await all_of(t.read(after=read.cursor))) == [3]


async def test_bounds_and_filters(db: Any) -> None:
    t = db.topic("t")
    await t.append([te.NewRecord(i, tag=f"t:{i % 2}", origin=f"n{i % 3}") for i in range(9)])
    for how, expected in [
        ({"after": 3}, [3, 4, 5, 6, 7, 8]),
        ({"after": 3, "to_seq": 5}, [3, 4]),
        ({"limit": 2}, [0, 1]),
        ({"tag": "t:1"}, [1, 3, 5, 7]),
        ({"tag": "t:*", "limit": 1}, [0]),
        ({"exclude_nodes": "n0"}, [1, 2, 4, 5, 7, 8]),
        ({"exclude_nodes": ["n0", "n1"]}, [2, 5, 8]),
        ({"after": te.LATEST}, []),
        ({"after": te.EARLIEST}, list(range(9))),
        ({"after": 9}, []),
    ]:
        assert datas(await all_of(t.read(**how))) == expected, how
    assert datas(await t.tail(2)) == [7, 8]
    assert await db.topic("empty").create() is not None
    assert await all_of(db.topic("empty").read()) == []
    assert await db.topic("empty").tail(3) == []


async def test_many_pages(db: Any) -> None:
    t = db.topic("t")
    for i in range(3):
        await t.append(list(range(i * 1000, i * 1000 + 1000)))
    assert datas(await all_of(t.read())) == list(range(3000))
    sizes = [len(b) async for b in t.read().batches()]
    assert sum(sizes) == 3000
    assert len(sizes) > 1


@pytest.mark.parametrize("gaps", ["yield", "raise", "skip"])
async def test_loss_is_told(db: Any, gaps: str) -> None:
    t = db.topic("t", cap_records=2)
    for i in range(1, 6):
        await t.append(i)
    read = t.read(after=0, gaps=gaps)
    lost = te.Gap("t", 1, 3, "cap", 3)
    if gaps == "raise":
        with pytest.raises(te.DataLoss) as caught:
            await anext(read)
        assert caught.value.gap == lost
        assert read.cursor == 0, "storing it loses nothing silently"
    if gaps == "yield":
        assert await anext(read) == lost
        assert read.cursor == 3
    assert datas(await all_of(read)) == [4, 5]
    assert read.gaps == [lost]
    # A reader that begins at what is kept has missed nothing.
    assert datas(await all_of(t.read(gaps="raise"))) == [4, 5]


async def test_a_topic_made_anew_is_told(db: Any) -> None:
    t = db.topic("t")
    await t.append(list(range(5)))
    read = t.read(after=0, limit=5)
    await anext(read)
    assert read.topic_id == (await t.state()).topic_id
    await t.drop()
    await t.append("new")
    assert datas(await all_of(t.read(after=0))) == ["new"]


async def test_a_closed_read_ends(db: Any) -> None:
    t = db.topic("t")
    await t.append([1, 2, 3])
    async with t.read() as read:
        assert (await anext(read)).data == 1
        await read.close()
        assert await all_of(read) == []
    await read.close()
    never = t.read()
    await never.close()
    assert await all_of(never) == []
    for ask in (lambda: never.cursor, lambda: never.topic_id):
        # Under asyncio: it has not begun.
        with pytest.raises((te.Closed, te.InvalidRequest)):
            ask()


async def test_records_outlive_the_topic(db: Any) -> None:
    t = db.topic("t")
    await t.append({"a": 1})
    (record,) = await all_of(t.read())
    await t.drop()
    await db.close()
    assert record.data == {"a": 1}
    assert record.raw.readonly


async def test_tables(db: Any) -> None:
    pytest.importorskip("pyarrow")
    t = db.topic("t", cap_records=3)
    for i in range(5):
        await t.append({"i": i})
    table = await t.read().to_arrow()
    assert table["seq"].to_pylist() == [3, 4, 5]
    read = t.read(after=0, gaps="skip")
    assert (await read.to_arrow())["seq"].to_pylist() == [3, 4, 5]
    assert [(g.first, g.last) for g in read.gaps] == [(1, 2)]


async def test_a_long_tail_is_the_newest(db: Any) -> None:
    t = db.topic("t")
    for i in range(3):
        await t.append(list(range(i * 1000, i * 1000 + 1000)))
    await t.delete(tag="none")
    assert datas(await t.tail(2500)) == list(range(500, 3000))
    assert datas(await t.tail(9999)) == list(range(3000))


async def test_tables_of_a_few(db: Any) -> None:
    pytest.importorskip("pyarrow")
    t = db.topic("t")
    for _ in range(3):
        await t.append([te.NewRecord("x" * 9000, tag=f"t:{n % 2}") for n in range(400)])
    for how, expected in [
        ({"limit": 7}, list(range(1, 8))),
        ({"limit": 1150}, list(range(1, 1151))),
        ({"limit": 5000}, list(range(1, 1201))),
        ({"limit": 700, "to_seq": 300}, list(range(1, 301))),
        ({"limit": 3, "after": 1190, "tag": "t:1"}, [1192, 1194, 1196]),
        ({"limit": 3, "after": te.LATEST}, []),
        ({"limit": 1, "after": 1200}, []),
    ]:
        table = await t.read(**how).to_arrow()
        assert table["seq"].to_pylist() == expected, how
        assert table.schema.field("data").type == "string"


async def test_typed_columns(db: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    t = db.topic("t")
    await t.append(
        [
            te.NewRecord({"n": n, "o": {"x": [f"{n}", None]}}, tag="odd" if n % 2 else "even")
            for n in range(3000)
        ]
    )
    await t.append([{"n": "none"}, {"n": 2**40, "o": 1}])
    schema = {"n": "int32", "x": {"type": "string", "path": "o.x[0]"}}
    read = t.read()
    table = await read.to_arrow(schema)
    assert table.column_names[-3:] == ["gap_reason", "n", "x"]
    assert "data" not in table.column_names
    assert table["n"].to_pylist() == [*range(3000), None, None]
    assert table["x"].to_pylist() == [*map(str, range(3000)), None, None]
    assert read.misfits == {"n": 2}
    limited = t.read(tag="odd", limit=7)
    assert (await limited.to_arrow(schema))["n"].to_pylist() == [1, 3, 5, 7, 9, 11, 13]
    assert limited.misfits == {}

    async def scanned(**asked: Any) -> Any:
        stream = await db.scan("t", **asked)
        return pa.RecordBatchReader.from_stream(stream).read_all()

    everything = {**schema, "_raw": "string", "_misfits": pa.string()}
    table = await scanned(schema=everything, columns=["tag", "seq"], after=2999)
    assert table.column_names == ["seq", "tag", *everything]
    assert table["_raw"].to_pylist() == [None, '{"n":"none"}', '{"n":1099511627776,"o":1}']
    assert table["_misfits"].to_pylist() == [None, '["n"]', '["n"]']
    assert (await scanned(schema=pa.schema({"n": pa.float64()})))["n"][-1].as_py() == 2.0**40
    assert await t.infer_schema() == {"n": "string", "o": "string"}
    assert await t.infer_schema(1) == {"n": "int64", "o": "int64"}
    with pytest.raises(te.InvalidRequest, match="did you mean `int64`"):
        await t.read().to_arrow({"n": "int46"})
    with pytest.raises(te.InvalidRequest, match=r"did you mean `o\.x\[0\]`"):
        await db.scan("t", schema={"o.x[0": "string"})


async def test_scans_and_splits(db: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    t = db.topic("t")
    await t.append([te.NewRecord({"n": n}, tag="odd" if n % 2 else "even") for n in range(1000)])
    parts = await db.split("t", max_records=300)
    assert (parts[0].after, parts[-1].to_seq) == (0, 1000)
    assert all(a.to_seq == b.after for a, b in pairwise(parts))
    assert sum(part.records for part in parts) == 1000
    topic_id = (await t.state()).topic_id
    assert {(part.topic, part.topic_id) for part in parts} == {("t", topic_id)}
    assert await db.split("t", after=1000) == []

    async def scanned(**asked: Any) -> Any:
        stream = await db.scan("t", **asked)
        return pa.RecordBatchReader.from_stream(stream).read_all()

    table = await scanned(after=10, to_seq=20, columns=["seq", "tag"])
    assert table.column_names == ["seq", "tag"]
    assert table["seq"].to_pylist() == list(range(11, 21))
    assert table["tag"].to_pylist() == ["even", "odd"] * 5
    assert (await scanned(tag="ev*", to_seq=4))["seq"].to_pylist() == [1, 3]
    assert (await scanned(since=timedelta(hours=1), until=None, to_seq=3)).num_rows == 3
    await t.sync()
    synced = await scanned(since="1h", after=te.EARLIEST, strong=True, topic_id=topic_id)
    assert synced.num_rows == 1000
    assert (await scanned(until=datetime(2020, 1, 1, tzinfo=UTC), to_seq=9)).num_rows == 0
    await t.append([0], origin="me")
    assert (await scanned(nodes=["me"]))["seq"].to_pylist() == [1001]
    assert (await scanned(exclude_nodes="me", after=998))["seq"].to_pylist() == [999, 1000]
    for call in (lambda: db.scan("none"), lambda: db.split("none")):
        with pytest.raises(te.NotFound):
            await call()
    with pytest.raises(te.InvalidRequest):
        await db.scan("t", columns=["nothing"])


async def test_refusals(db: Any) -> None:
    t = db.topic("t")
    await t.append(1)
    with pytest.raises(te.InvalidRequest):
        t.read(gaps="no")
    with pytest.raises(te.InvalidRequest):
        await all_of(t.read(tag="a*b*"))
    with pytest.raises(te.NotFound):
        await all_of(db.topic("none").read())
