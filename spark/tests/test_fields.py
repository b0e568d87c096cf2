"""Typed columns: the option `fields` of batches and streams."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.errors import PySparkException
from pyspark_topics.errors import InvalidOption
from pyspark_topics.typed import typed_fields

FIELDS = (
    "user long, price double, ok boolean, day date, at timestamp, cost decimal(10, 2), "
    '`items[0].id` string, `["tag"]` string, _raw string, _misfits string'
)


def rows():
    return [
        {
            "user": 1,
            "price": 2,
            "ok": True,
            "day": "2026-01-02",
            "at": "2026-01-02T03:04:05+01:00",
            "cost": "1.25",
            "items": [{"id": "x"}],
            "tag": "in the record",
        },
        {"user": "none", "price": None, "items": [{"id": {"a": 1}}]},
        {},
    ]


def test_values_nulls_and_misfits(topics, topic, read):
    topics.append(topic, rows(), tag="t")
    frame = read(fields=FIELDS)
    assert frame.columns[:6] == ["topic", "seq", "ts", "node", "tag", "meta"]
    assert frame.columns[6:] == [one.name for one in typed_fields(FIELDS)]
    first, second, third = frame.orderBy("seq").collect()
    assert (first.user, first.price, first.ok, first.day) == (1, 2.0, True, date(2026, 1, 2))
    assert first.at.replace(tzinfo=UTC) == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert (first.cost, first["items[0].id"]) == (Decimal("1.25"), "x")
    assert (first.tag, first['["tag"]'], first["_raw"]) == ("t", "in the record", None)
    assert (second.user, second["items[0].id"], second["_misfits"]) == (
        None,
        '{"a": 1}',
        '["user"]',
    )
    assert second["_raw"].startswith('{"user": "none"')
    assert (third.user, third["_misfits"]) == (None, None)
    assert frame.where("price = 2").selectExpr("sum(user)").collect()[0][0] == 1


def test_a_schema_selects_of_them(topics, topic, read):
    topics.append(topic, rows())
    found = read("seq long, price double", fields=FIELDS).orderBy("seq").collect()
    assert [(row.seq, row.price) for row in found] == [(1, 2.0), (2, None), (3, None)]
    found = read("user long, data string", fields=FIELDS).collect()
    assert sorted(row.user or 0 for row in found) == [0, 0, 1]
    # `_misfits` is about all fields, whichever are shown.
    assert read("_misfits string", fields=FIELDS).distinct().count() == 2
    for schema, word in (("user int", "user"), ("other long", "other")):
        with pytest.raises(PySparkException, match=word):
            read(schema, fields=FIELDS).collect()


def test_a_stream_has_them(topics, topic, spark, tmp_path):
    topics.append(topic, [{"n": n} for n in range(100)])
    stream = (
        spark.readStream.format("topics")
        .option("url", topics.url)
        .option("subscribe", topic)
        .option("fields", "n int")
        .load()
    )
    query = (
        stream.select("n")
        .writeStream.format("memory")
        .queryName("typed_numbers")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.sql("select sum(n) from typed_numbers").collect()[0][0] == sum(range(100))


def test_names_and_types():
    kinds = [one.engine for one in typed_fields("a TINYINT, b short , c Integer,d real, e decimal")]
    assert kinds == ["int8", "int16", "int32", "float", "decimal128(10, 0)"]
    (quoted,) = typed_fields("`a``b, c` timestamp_ntz")
    assert (quoted.name, quoted.engine) == ("a`b, c", "timestamp[us]")
    for text, word in [
        ("", "a name and a type"),
        ("user", "a name and a type"),
        ("user long,", "comma"),
        ("user long price double", "a name and a type"),
        ("user lonk", "did you mean long"),
        ("user long, user int", "twice"),
        ("cost decimal(39, 2)", r"decimal\(38, 9\)"),
        ("at timestamp(3)", "unknown type timestamp"),
        ("list array<int>", "a name and a type"),
    ]:
        with pytest.raises(InvalidOption, match=word):
            typed_fields(text)


def test_refusals_name_the_column(topics, topic, read):
    topics.append(topic, rows())
    with pytest.raises(PySparkException, match=r'every topic has.*`\["tag"\]`'):
        read(fields="tag string").collect()
    with pytest.raises(PySparkException, match=r"did you mean `a\.b`"):
        read(fields="a..b string").collect()
