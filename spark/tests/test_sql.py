"""Topics in SQL: views to read and to write, and their limits."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from .versions import SPARK


@pytest.fixture
def view(spark, topics):
    """Creates temporary views, which end with the test."""
    names = []

    def create(name, columns="", **options):
        given = ", ".join(
            f"{key} '{value}'" for key, value in {"url": topics.url, **options}.items()
        )
        names.append(name)
        spark.sql(f"CREATE TEMPORARY VIEW {name} {columns} USING topics OPTIONS ({given})")

    yield create
    for name in names:
        spark.catalog.dropTempView(name)


def test_a_view_reads_topics(spark, topics, topic, view):
    topics.append(topic, [{"n": 7}])
    view("seen", subscribe=topic)
    row = spark.sql("SELECT seq, get_json_object(data, '$.n') AS n FROM seen").collect()[0]
    assert (row.seq, row.n) == (1, "7")
    assert json.loads(spark.table("seen").select("data").collect()[0].data) == {"n": 7}
    view("narrow", "(seq BIGINT, data STRING)", subscribe=topic)
    assert spark.table("narrow").columns == ["seq", "data"]


def test_inserts_through_a_view(spark, topics, topic, view):
    topics.append(topic, list(range(100)))
    view("orders", subscribe=topic)
    view("one", "(data STRING)", topic=f"{topic}.one")
    spark.sql("INSERT INTO one SELECT data FROM orders WHERE seq <= 10")
    spark.sql("INSERT INTO one VALUES ('100'), ('101')")
    assert sorted(topics.data(f"{topic}.one")) == [*range(10), 100, 101]
    view("any", "(topic STRING, tag STRING, data STRING)")
    spark.sql(f"INSERT INTO any SELECT '{topic}.two', 'x', data FROM orders")
    # Spark 4.0 does not fill the columns that are left out.
    rest = ("", "") if SPARK >= (4, 1) else (", tag", ", NULL")
    spark.sql(f"INSERT INTO any (data, topic{rest[0]}) SELECT '[]', '{topic}.three'{rest[1]}")
    assert {row["$tag"] for row in topics.rows(f"{topic}.two")} == {"x"}
    assert topics.data(f"{topic}.three") == [[]]
    # One view for both, where it names columns of a sink only.
    both = {"topic": f"{topic}.both", "subscribe": f"{topic}.both", "allowMissingTopics": "true"}
    view("both", "(data STRING)", **both)
    spark.sql("INSERT INTO both SELECT data FROM orders")
    assert spark.sql("SELECT count(*) FROM both").collect()[0][0] == 100


def test_limits(spark, topics, topic, view):
    topics.append(topic, [1, 2, 3])
    view("orders", subscribe=topic)
    view("sink", "(data STRING)", topic=f"{topic}.out")
    for statement, words in (
        ("INSERT OVERWRITE sink SELECT data FROM orders", 'mode\\("append"\\)'),
        ("INSERT INTO orders SELECT * FROM orders", "a sink has no column"),
        ("SELECT * FROM sink", '"subscribe"'),
        (f"CREATE TABLE t USING topics OPTIONS (url '{topics.url}')", "PYTHON_DATA_SOURCE_ERROR"),
    ):
        with pytest.raises(PySparkException, match=words):
            spark.sql(statement).collect()
    # If this fails, Spark passes the options of a query on to a view.
    found = spark.sql("SELECT count(*) FROM orders WITH (startingOffsets = 'latest')")
    assert found.collect()[0][0] == 3
