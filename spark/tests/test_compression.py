"""Arrow buffers compressed on the way from and to the server: the same rows in fewer bytes."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_topics.client import Client
from pyspark_topics.errors import TopicsError
from pyspark_topics.options import Connection
from pyspark_topics.staging import Writer

pa = pytest.importorskip("pyarrow")

ROWS = 20_000
CODECS = ("lz4", "zstd")


def flights(n: int) -> list[dict[str, Any]]:
    """Rows of a table as JSON."""
    carriers, airports = ("UA", "AA", "DL", "B6"), ("JFK", "LGA", "EWR")
    return [
        {
            "carrier": carriers[i * 7 % 4],
            "flight": 100 + i * 31 % 4000,
            "origin": airports[i * 5 % 3],
            "dep_delay": i * 13 % 97 - 10,
            "distance": 187 + i * 17 % 2400,
        }
        for i in range(n)
    ]


def test_a_source_reads_the_same_rows_in_fewer_bytes(topics, topic, read, proxy):
    topics.append(topic, flights(ROWS))
    rows = sorted(read(url=proxy.url).collect(), key=lambda row: row.seq)
    assert len(rows) == ROWS
    plain = proxy.transferred("/scan")
    for codec in CODECS:
        before = proxy.transferred("/scan")
        found = read(url=proxy.url, compression=codec).collect()
        assert sorted(found, key=lambda row: row.seq) == rows
        assert proxy.transferred("/scan") - before < plain / 2, codec


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_reads_and_writes_the_same_rows_in_fewer_bytes(
    topics, topic, stream, proxy, codec
):
    """The options of a query may change when it goes on."""
    topics.append(topic, flights(ROWS))
    stream.sink_options = {"url": proxy.url}
    stream.run(url=proxy.url)
    plain = {part: proxy.transferred(part) for part in ("/scan", "/stage/")}
    topics.append(topic, flights(ROWS))
    stream.sink_options["compression"] = codec
    stream.run(url=proxy.url, compression=codec)
    assert topics.data(stream.sink) == topics.data(topic)
    for part, size in plain.items():
        assert proxy.transferred(part) - size < size / 2, part


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_sink_sends_fewer_bytes(spark, topics, topic, read, proxy, codec):
    topics.append(topic, flights(ROWS))
    frame = read("data string").cache()

    def staged(**options: str) -> int:
        before = proxy.transferred("/stage/")
        writer = frame.write.format("topics").mode("append")
        writer.save(url=proxy.url, topic=f"{topic}.out", **options)
        return proxy.transferred("/stage/") - before

    plain = staged()
    assert staged(compression=codec) < plain / 2
    frame.unpersist()
    assert topics.data(f"{topic}.out") == topics.data(topic) * 2


@pytest.mark.parametrize("codec", CODECS)
def test_a_part_that_is_larger_than_a_body_is_refused(topics, topic, codec):
    """What it decompresses to counts, before any of it is decompressed."""
    client = Client(Connection(topics.url, None, None, 60.0, compression=codec))
    rows = pa.table({"topic": [topic] * 80, "data": ['"' + "x" * 1_000_000 + '"'] * 80})
    with pytest.raises(TopicsError, match="decompressed body is over the limit") as refused:
        Writer(client, topic).stage("s", 0, rows)
    assert refused.value.code == "payload_too_large"
    Writer(client, topic).stage("s", 0, rows.slice(0, 10))
    client.close()
