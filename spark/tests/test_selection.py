"""Records that the options `tag`, `tagPrefix` and `nodes` select: in batch and stream, alike."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import topics_engine as te


@pytest.fixture
def filled(topics, topic):
    """Tags and nodes of the numbers 0 to 99, 1 in 10 without either."""

    def tag(n):
        return f"eu:{n % 2}" if n % 3 else "us"

    for n in range(100):
        fields = {} if n % 10 == 0 else {"tag": tag(n), "node": f"n{n % 4}"}
        topics.append(topic, [n], **fields)
    tagged = [n for n in range(100) if n % 10]
    return {
        "tag": ({"tag": "us"}, [n for n in tagged if tag(n) == "us"]),
        "prefix": ({"tagPrefix": "eu:"}, [n for n in tagged if tag(n) != "us"]),
        "nodes": ({"nodes": "n1,n3"}, [n for n in tagged if n % 4 in (1, 3)]),
        "both": (
            {"tag": "us", "nodes": "n2"},
            [n for n in tagged if tag(n) == "us" and n % 4 == 2],
        ),
    }


CASES = ("tag", "prefix", "nodes", "both")


def values(frame):
    return sorted(int(row.data) for row in frame.select("data").collect())


@pytest.mark.parametrize("case", CASES)
def test_a_batch_has_only_the_selected_records(read, filled, case):
    options, expected = filled[case]
    assert values(read(**options, minPartitions="3")) == expected
    # Columns that the selection is about may be absent; a count reads no column.
    assert read("seq long", **options).count() == len(expected)
    assert read("data string", **options).count() == len(expected)


@pytest.mark.parametrize("case", CASES)
def test_a_stream_has_only_the_selected_records(topics, stream, filled, case):
    options, expected = filled[case]
    stream.run(**options, maxOffsetsPerTrigger="30")
    assert sorted(topics.data(stream.sink)) == expected
    # Batches without a selected record advance it too.
    assert next(iter(stream.offsets()[3]["t"].values()))[2] == 101


def test_frames_with_other_selections_do_not_disturb_each_other(pushing, read, filled):
    us, eu = (read(**filled[case][0], pushFilters="true") for case in ("tag", "prefix"))
    expected = sorted(filled["tag"][1] + filled["prefix"][1])
    assert values(us.union(eu)) == expected
    # A condition of the query is applied beside that of the source, by whichever side.
    assert us.where("tag = 'eu:1'").count() == 0
    assert eu.where("tag = 'eu:1'").count() == len([n for n in filled["prefix"][1] if n % 2])


def test_conditions_of_a_stream_are_left_to_spark(topics, stream, filled):
    stream.run(lambda frame: frame.where("tag = 'us' and node = 'n2'").select("data"))
    assert sorted(topics.data(stream.sink)) == filled["both"][1]
    with pytest.raises(PySparkException, match=r"pushFilters.*is for batches"):
        stream.run(pushFilters="true")


def test_a_loss_is_reported_whatever_is_selected(topics, topic, read, stream):
    topics.create(topic, cap_records=10)
    for n in range(30):
        topics.append(topic, [n], tag="a" if n % 2 else "b")
    start = {"startingOffsets": f'{{"{topic}": 1}}', "tag": "a"}
    with pytest.raises(PySparkException, match=r"records 1 to 20 .* are lost"):
        read(**start).collect()
    with pytest.raises(PySparkException, match=r"records 1 to 20 .* are lost"):
        stream.run(**start)
    rows = read(**start, gaps="emit").orderBy("seq").collect()
    assert [row.data for row in rows] == [None, *map(str, range(21, 30, 2))]
    assert rows[0].meta["gap_to"] == "20"


def test_a_directory_is_selected_from_alike(spark, tmp_path):
    with te.open(tmp_path / "data") as db:
        db.topic("a").append([te.NewRecord(n, tag=f"t:{n % 3}") for n in range(30)])
    reader = spark.read.format("topics").options(tagPrefix="t:1")
    frame = reader.load(path=str(tmp_path / "data"), subscribe="a")
    found = frame.select(f.col("data").cast("int").alias("n")).collect()
    assert sorted(row.n for row in found) == list(range(1, 30, 3))
