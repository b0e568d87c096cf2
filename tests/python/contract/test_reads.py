"""Reads: ends, filters, gaps, cursors, tables."""

from __future__ import annotations

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
    await t.append([te.New(i, tag=f"t:{i % 2}", node=f"n{i % 3}") for i in range(9)])
    for how, expected in [
        ({"after": 3}, [3, 4, 5, 6, 7, 8]),
        ({"after": 3, "upto": 5}, [3, 4]),
        ({"limit": 2}, [0, 1]),
        ({"match": "t:1"}, [1, 3, 5, 7]),
        ({"match": "t:*", "limit": 1}, [0]),
        ({"node": "n0"}, [1, 2, 4, 5, 7, 8]),
        ({"node": ["n0", "n1"]}, [2, 5, 8]),
        ({"after": te.TAIL}, []),
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


async def test_refusals(db: Any) -> None:
    t = db.topic("t")
    await t.append(1)
    with pytest.raises(te.InvalidRequest):
        t.read(gaps="no")
    with pytest.raises(te.InvalidRequest):
        await all_of(t.read(match="a*b*"))
    with pytest.raises(te.NotFound):
        await all_of(db.topic("none").read())
