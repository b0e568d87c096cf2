"""Options: accepted ones, and refusals that name the option."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from pyspark_topics import DefaultSource, source
from pyspark_topics.access import ScanRequest
from pyspark_topics.bad import BadRecords
from pyspark_topics.errors import InvalidOption
from pyspark_topics.fields import scan_body
from pyspark_topics.options import (
    EARLIEST,
    KNOWN,
    LATEST,
    Selection,
    Subscription,
    literal_prefix,
    read_options,
    stream_options,
    write_options,
)

URL = {"url": "http://127.0.0.1:4000"}
CODECS = [({"compression": codec}, codec) for codec in ("lz4", "zstd")]


def read(**options: str):
    return read_options(CaseInsensitiveDict({**URL, "subscribe": "a", **options}))


def write(**options: str):
    return write_options(CaseInsensitiveDict({**URL, **options}))


def test_defaults():
    given = read()
    assert (given.start.of("a"), given.end.of("a")) == (EARLIEST, LATEST)
    assert (given.on_gap, given.include_meta, given.binary, given.strong) == (
        "fail",
        True,
        False,
        False,
    )
    assert (given.max_offsets, given.max_bytes, given.min_partitions) == (None, None, 1)


def test_names_ignore_case_and_lists_are_cleaned():
    given = read_options(CaseInsensitiveDict({**URL, "SUBSCRIBE": " b, a,,b "}))
    assert given.topics == Subscription(("b", "a"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", {"a": EARLIEST, "b": EARLIEST}),
        ("Latest", {"a": LATEST, "b": LATEST}),
        ('{"a": 23}', {"a": 23, "b": EARLIEST}),
        ('{"a": -1, "b": -2}', {"a": LATEST, "b": EARLIEST}),
    ],
)
def test_starting_offsets(text: str, expected: dict[str, int]):
    start = read(subscribe="a,b", startingOffsets=text).start
    assert {name: start.of(name) for name in expected} == expected


def test_topics_that_ending_offsets_do_not_name_end_at_their_head():
    end = read(endingOffsets='{"a": 5}').end
    assert (end.of("a"), end.of("b")) == (5, LATEST)


@pytest.mark.parametrize("take", [read, write])
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("subscribePatern", "subscribePattern"),
        ("subscribe_pattern", "subscribePattern"),
        ("startingOffset", "startingOffsets"),
        ("failOnDataLos", "failOnDataLoss"),
        ("WRITERID ", "writerId"),
        ("txnApp", "txnAppId"),
        ("tokn", "token"),
        ("checkpointLocatoin", "checkpointLocation"),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(take, given: str, meant: str):
    with pytest.raises(InvalidOption, match=f'unknown option .*; did you mean "{meant}"'):
        take(**{given: "1"})


def test_an_option_like_none_that_there_is_names_all_of_them():
    with pytest.raises(InvalidOption, match='unknown option "zzz"; known are url, token, '):
        read(zzz="1")
    # Options that Spark uses itself are accepted, and so are those of the other side.
    read(checkpointLocation="/tmp/x", queryName="q", writerId="w")
    write(checkpointLocation="/tmp/x", queryName="q", subscribe="a")


def test_every_option_is_known():
    code = Path(read_options.__code__.co_filename).read_text()
    used = set(re.findall(r"""(?:options\.get\(|\(options, )"(\w+)\"""", code))
    used |= set(re.findall(r"""_positions\(options, "\w+", "(\w+)\"""", code))
    assert used == set(KNOWN)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("0", 0),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 23:13:20.5+01:00", 1_700_000_000_500),
    ],
)
def test_a_timestamp_is_milliseconds_or_iso_text(text: str, ms: int):
    for given in (read(startingTimestamp=text).start, read(endingTimestamp=text).end):
        assert (given.time_of("a"), given.time_of("b")) == (ms, ms)


def test_timestamps_of_some_topics():
    text = '{"a": 1700000000000, "b": "2023-11-14T22:13:20Z"}'
    start = read(subscribe="a,b,c", startingTimestamp=text).start
    assert [start.time_of(name) for name in "abc"] == [1_700_000_000_000] * 2 + [None]
    assert start.of("c") == EARLIEST
    assert read(endingTimestamp='{"a": 1}').end.of("c") == LATEST


def test_a_batch_waits_for_rows():
    given = read(minOffsetsPerTrigger="100")
    assert (given.min_offsets, given.max_delay) == (100, 900)
    for text, seconds in (("500ms", 0.5), ("30s", 30), ("2 min", 120), ("1h", 3600)):
        assert read(minOffsetsPerTrigger="1", maxTriggerDelay=text).max_delay == seconds


@pytest.mark.parametrize("take", [read, write])
def test_bad_records(take):
    assert take().bad == BadRecords("fail")
    assert take(badRecords="log").bad == BadRecords("log")
    assert take(badRecords="topic:a.b:c").bad == BadRecords("topic", "a.b:c")
    for text in ("skip", "topic", "topic:", "log:x", ""):
        with pytest.raises(InvalidOption, match=r'"badRecords" is fail, log or topic:NAME'):
            take(badRecords=text)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"subscribe": " , "}, "subscribe"),
        ({"subscribePattern": "x"}, "subscribe"),
        ({"path": "/data"}, "url"),
        ({"url": "127.0.0.1:4000"}, "url"),
        ({"url": "ftp://127.0.0.1"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://host:0"}, "url"),
        ({"url": "http://host:65536"}, "url"),
        ({"url": "http://host:port"}, "url"),
        ({"url": "http://host:1?x=1"}, "url"),
        ({"url": "http://ho st:1"}, "url"),
        ({"token": ""}, "token"),
        ({"startingOffsets": '{"b": 3}'}, "not subscribed"),
        ({"endingOffsets": '{"a": 3, "b": 3}'}, "not subscribed"),
        ({"allowMissingTopics": "1"}, "allowMissingTopics"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": '{"a": -3}'}, "startingOffsets"),
        ({"startingOffsets": '{"a": true}'}, "startingOffsets"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp"),
        ({"startingOffsets": "latest", "startingTimestamp": "2023-11-14T22:13:20Z"}, "exclude"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp.*ISO 8601.*yesterday"),
        ({"startingTimestamp": "2023-11-14T22:13:20"}, "startingTimestamp.*has no zone"),
        ({"startingTimestamp": "-5"}, "startingTimestamp"),
        ({"startingTimestamp": "1969-12-31T00:00:00Z"}, "before 1970"),
        ({"startingTimestamp": "{"}, "startingTimestamp.*JSON"),
        ({"startingTimestamp": '{"a": true}'}, "startingTimestamp"),
        ({"startingTimestamp": '{"b": 5}'}, "not subscribed"),
        ({"maxTriggerDelay": "5m"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "5"}, "maxTriggerDelay"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "1e6"}, "maxBytesPerTrigger"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss"),
        ({"gaps": "skip"}, "gaps"),
        ({"dataType": "text"}, "dataType"),
        ({"consistency": "linear"}, "consistency"),
    ],
)
def test_refusals_name_the_option(options: dict[str, str], word: str):
    with pytest.raises(InvalidOption, match=word):
        read(**options)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": "http://h:1", "remote": "s3://b/p"}, "goes with"),
        ({"path": "s3://b/p", "remote": "s3://b/p"}, "itself"),
        ({"path": "/data", "remote": "http://b/p"}, "file:///directory"),
    ],
)
def test_a_remote_goes_with_a_directory(options: dict[str, str], word: str):
    with pytest.raises(InvalidOption, match=word):
        read_options(CaseInsensitiveDict({"subscribe": "a", **options}))
    given = {"subscribe": "a", "path": "/data", "remote": "s3://b/p"}
    assert read_options(CaseInsensitiveDict(given)).connection.remote == "s3://b/p"


def test_no_topics_and_bad_patterns_are_refused():
    with pytest.raises(InvalidOption, match="subscribePattern"):
        read_options(CaseInsensitiveDict(URL))
    with pytest.raises(InvalidOption, match="subscribePattern"):
        read_options(CaseInsensitiveDict({**URL, "subscribePattern": "("}))


def test_the_records_of_a_source_are_selected():
    assert read().selection == Selection()
    chosen = read(tag="eu", nodes=" n2, n1,,n2 ").selection
    assert chosen == Selection(("tag", "Eq", "eu"), ("n1", "n2"))
    assert read(tagPrefix="eu:").selection.match == ("tag", "Glob", "eu:*")
    for options, word in (
        ({"tag": "a", "tagPrefix": "b"}, "exclude each other"),
        ({"tag": ""}, '"tag" is empty'),
        ({"tagPrefix": ""}, "tagPrefix"),
        ({"tagPrefix": "a*"}, "tagPrefix"),
        ({"nodes": " ,"}, "nodes"),
    ):
        with pytest.raises(InvalidOption, match=word):
            read(**options)


def test_a_stream_has_no_pushed_filters():
    given = {**URL, "subscribe": "a"}
    with pytest.raises(InvalidOption, match=r'"pushFilters" is for batches: .*"tagPrefix"'):
        stream_options(CaseInsensitiveDict({**given, "pushFilters": "true"}))
    stream_options(CaseInsensitiveDict({**given, "pushFilters": "false"}))


def test_pushed_filters_need_a_spark_that_has_them(monkeypatch):
    monkeypatch.setattr(source, "PUSHES_FILTERS", False)
    one = DefaultSource(CaseInsensitiveDict({**URL, "subscribe": "a", "pushFilters": "true"}))
    with pytest.raises(InvalidOption, match=r'"pushFilters" needs Spark 4\.1, and this is 4\.\d'):
        one.reader(StructType().add("seq", "long"))


def test_a_schema_without_columns_needs_a_spark_that_counts_its_rows(monkeypatch):
    one = DefaultSource(CaseInsensitiveDict({**URL, "subscribe": "a"}))
    for reader in (one.reader, one.streamReader):
        monkeypatch.setattr(source, "KEEPS_EMPTY_ROWS", True)
        reader(StructType())
        monkeypatch.setattr(source, "KEEPS_EMPTY_ROWS", False)
        reader(StructType().add("seq", "long"))
        with pytest.raises(InvalidOption, match=r"without columns has no rows in Spark 4\.\d"):
            reader(StructType())


def test_a_place_is_named_once():
    for options, words in (
        ({}, "neither"),
        ({**URL, "path": "/data"}, "exclude each other"),
    ):
        with pytest.raises(InvalidOption, match=words) as refused:
            read_options(CaseInsensitiveDict({**options, "subscribe": "a"}))
        assert '"url"' in str(refused.value)
        assert '"path"' in str(refused.value)


@pytest.mark.parametrize("token", ["s3cret\n", "s3cret x", "s3cret\u00e9", "\ts3cret"])
def test_a_secret_is_in_no_message_about_it(token: str):
    with pytest.raises(InvalidOption, match="token") as refused:
        read(token=token)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(InvalidOption, match="token") as refused:
        read(url="http://me:s3cret@host:1")
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(read(token="s3cret"))


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(name: str):
    options = {**URL, "subscribe": "a", name: "1" if name == "endingTimestamp" else '{"a": 5}'}
    source = DefaultSource(CaseInsensitiveDict(options))
    schema = StructType().add("seq", "long")
    with pytest.raises(InvalidOption, match=name):
        source.streamReader(schema)
    source.reader(schema)


def test_what_of_the_options_a_request_carries():
    request = ScanRequest("a", 7, 9, 20, ("data", "seq"), False, False, Selection())
    plain = {
        "from_seq": 9,
        "to_seq": 20,
        "topic_id": 7,
        "columns": ["data", "seq"],
        "data_type": "string",
    }
    assert scan_body(request) == plain
    chosen = Selection(("tag", "Glob", "eu:*"), ("n1", "n2"))
    other = replace(request, binary=True, strong=True, selection=chosen)
    assert scan_body(other) == {
        **plain,
        "data_type": "binary",
        "consistency": "strong",
        "match": ["tag", "Glob", "eu:*"],
        "nodes": ["n1", "n2"],
    }


def test_compression_is_off_unless_asked_for():
    for given, codec in [({}, None), ({"compression": "none"}, None), *CODECS]:
        place = CaseInsensitiveDict({**URL, **given})
        assert write_options(place).connection.compression == codec
        source = CaseInsensitiveDict({**URL, "subscribe": "a", **given})
        assert read_options(source).connection.compression == codec
    for codec in ("gzip", "ZSTD", ""):
        with pytest.raises(InvalidOption, match=f"is lz4, zstd or none, not '{codec}'"):
            write_options(CaseInsensitiveDict({**URL, "compression": codec}))
    place = {"path": "/data", "subscribe": "a", "compression": "lz4"}
    with pytest.raises(InvalidOption, match='"compression" goes with "url"'):
        read_options(CaseInsensitiveDict(place))


def test_a_directory_takes_nothing():
    for options in ({"consumer": "c"}, {"badRecords": "topic:t"}):
        with pytest.raises(InvalidOption, match="needs a server"):
            read_options(CaseInsensitiveDict({"path": "/data", "subscribe": "a", **options}))


def test_what_a_gap_does():
    assert read(failOnDataLoss="false").on_gap == "log"
    assert read(gaps="emit").on_gap == "emit"
    assert read(failOnDataLoss="false", gaps="fail").on_gap == "fail"


def test_sinks():
    given = write(topic="t", txnAppId="app", txnVersion="7", staleEpoch="skip")
    assert (given.topic, given.app, given.version, given.skip_stale) == ("t", "app", 7, True)
    for options, word in (
        ({"txnAppId": "app"}, "txnVersion"),
        ({"txnVersion": "1"}, "txnAppId"),
        ({"staleEpoch": "ignore"}, "staleEpoch"),
    ):
        with pytest.raises(InvalidOption, match=word):
            write(**options)
    with pytest.raises(InvalidOption, match="server"):
        write_options(CaseInsensitiveDict({"path": "/data"}))


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders", "orders"),
        (r"orders\..*", "orders."),
        ("orders.*", "orders"),
        ("ab*", "a"),
        ("ab?c", "a"),
        ("ab{0,2}", "a"),
        ("ab+", "ab"),
        ("ab|cd", ""),
        ("a(b|c)", ""),
        ("(ab)c", ""),
        ("a[bc]", "a"),
        (r"a\d", "a"),
        ("", ""),
    ],
)
def test_the_prefix_holds_for_all_that_a_pattern_matches(pattern: str, prefix: str):
    assert literal_prefix(pattern) == prefix
    names = ["", "a", "ab", "abb", "ac", "acb", "abc", "cd", "a1", "orders", "orders.x", "orders-y"]
    for name in names:
        if re.fullmatch(pattern, name):
            assert name.startswith(prefix)
            assert Subscription(pattern=pattern).matches(name)
