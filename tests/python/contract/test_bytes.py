"""A payload comes back byte for byte through every way out of a client."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from support.payloads import PAYLOADS

from .adapter import take


@pytest.mark.parametrize("kind", PAYLOADS)
async def test_payloads_come_back_byte_for_byte(db: Any, kind: str) -> None:
    text = PAYLOADS[kind]
    table = pa.table({"data": [text, "1", text]})
    topic, jobs = db.topic("t"), await db.queue("q")
    await topic.append_arrow(table)
    await db.topic("q").append_arrow(table)
    want = [text.encode(), b"1", text.encode()]

    def raws(items: Any) -> list[bytes]:
        return [bytes(item.raw) for item in items]

    assert raws([r async for r in topic.read(after=0)]) == want
    assert raws(await topic.tail(3)) == want
    async with db.watch({"t": 0}) as watch:
        assert raws(await take(watch, 3)) == want
        await topic.append_arrow(table)
        assert raws(await take(watch, 3)) == want, "live"
    consumer = await topic.consumer("c")
    assert raws(await consumer.read(max_records=3)) == want
    arrow = await topic.read(after=0).to_arrow()
    assert [v.encode() for v in arrow["data"].to_pylist()[:3]] == want
    claimed = await jobs.claim("w", max=3)
    assert [bytes(job.record.raw) for job in claimed] == want
    for job in claimed:
        await job.nack(delay=0)
    stream = jobs.work("w", 3)
    pushed = [await anext(stream) for _ in want]
    assert [bytes(job.record.raw) for job in pushed] == want
    await stream.close()
