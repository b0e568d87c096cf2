"""The reader of a stream alone, with heads that the test sets."""

from __future__ import annotations

import inspect
import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.types import LongType, StructField, StructType
from pyspark_topics import DefaultSource, batch, source, stream
from pyspark_topics.compat import ReadAllAvailable, ReadMaxRows
from pyspark_topics.errors import DataLoss, TopicsError
from pyspark_topics.options import read_options, stream_options
from pyspark_topics.planning import Head, Loss, Range

SCHEMA = StructType([StructField("seq", LongType())])


class Fake:
    """An engine that answers only requests for heads and sizes, and the clock."""

    def __init__(self) -> None:
        self.topics: dict[str, Head] = {}
        self.asked = 0
        self.seconds = 0.0
        self.now = 0.0

    def set(self, name, end, topic_id=1, earliest=1, after=None):
        self.topics[name] = Head(topic_id, earliest, end, after or end, end - earliest, 100)

    def heads(self, _topics):
        self.asked += 1
        self.now += self.seconds
        return dict(self.topics)

    def fill(self, whole, size):
        return whole.lo + max(1, size // 10)

    def cut(self, ranges):
        return list(ranges)

    def keep_open(self):
        return nullcontext()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds


@pytest.fixture
def fake(monkeypatch):
    fake = Fake()
    for module in (stream, batch):
        monkeypatch.setattr(module, "access", lambda _to: fake)
    monkeypatch.setattr(stream, "time", fake)
    return fake


def options_of(**options):
    return read_options(CaseInsensitiveDict({"url": "http://h:1", **options}))


def reader(**options):
    topics = {} if "subscribe" in options else {"subscribePattern": ".*"}
    given = {"url": "http://h:1", **topics, **options}
    return stream.TopicsStreamReader(stream_options(CaseInsensitiveDict(given)), SCHEMA)


def latest(one, start, limit=None):
    return one.latestOffset(start, limit or one.getDefaultReadLimit())


def spans(partitions):
    return [(r.topic, r.topic_id, r.lo, r.hi) for p in partitions for r in p.value]


def test_what_is_asked_for_again_when_idle_is_byte_identical(fake):
    fake.set("b", 11)
    fake.set("a", 5)
    one = reader()
    first = latest(one, one.initialOffset())
    again = latest(one, json.loads(json.dumps(first)))
    assert json.dumps(again) == json.dumps(first)
    # Empty topics change nothing either.
    fake.set("aa", 1)
    assert json.dumps(latest(one, first)) == json.dumps(first)


def test_a_crash_in_the_first_batch_loses_nothing(fake):
    fake.set("a", 11)
    one = reader(startingOffsets="latest")
    start = one.initialOffset()
    fake.set("a", 21)
    end = latest(one, start)
    assert spans(one.partitions(start, end)) == [("a", 1, 11, 21)]
    # Spark crashes. Its next run requests the first offset again, which has moved, and knows the
    # end.
    fake.set("a", 31)
    other = reader(startingOffsets="latest")
    moved = other.initialOffset()
    assert moved["t"]["a"] == [1, 31, 31]
    assert spans(other.partitions(moved, json.loads(json.dumps(end)))) == [("a", 1, 11, 21)]
    assert latest(other, end)["t"]["a"] == [1, 21, 31]


def test_the_first_offset_stays_the_first(fake):
    fake.set("a", 11)
    one = reader(startingOffsets="latest")
    first = one.initialOffset()
    fake.set("a", 21)
    assert one.initialOffset() == first


def test_an_idle_topic_is_not_read_again_when_another_goes_on(fake):
    fake.set("a", 11)
    fake.set("b", 11)
    one = reader()
    start = one.initialOffset()
    first = latest(one, start)
    fake.set("b", 12)
    second = latest(one, first)
    assert spans(one.partitions(first, second)) == [("b", 1, 11, 12)]
    assert spans(one.partitions(first, first)) == []


def test_a_poll_tells_what_was_there_when_it_was_asked(fake):
    """`processAllAvailable` waits for a poll without new rows: a cached answer would end it
    before the rows that were appended earlier were processed."""
    fake.set("a", 11)
    one = reader()
    first = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    fake.set("a", 12)
    assert one.latestOffset(first, ReadAllAvailable())["t"]["a"] == [1, 11, 12]


def test_a_poll_asks_for_the_heads_once_and_not_at_once_again(fake, monkeypatch):
    monkeypatch.setattr(stream, "POLL", 0.25)
    monkeypatch.setattr(stream, "MAX_IDLE_POLL", 0.25)
    fake.set("a", 11)
    one = reader()
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())

    def poll():
        asked, began = fake.asked, fake.now
        one.latestOffset(end, ReadAllAvailable())
        one.reportLatestOffset()
        assert fake.asked == asked + 1
        return fake.now - began - fake.seconds

    # A slow server is polled at most a third of the time.
    for seconds, pause in ((0.0, 0.25), (0.125, 0.25), (0.5, 1.0)):
        fake.seconds = seconds
        poll()
        assert poll() == pause
    # A batch was processed in the meantime: no wait.
    fake.now += 10
    assert poll() == 0


def test_an_idle_stream_polls_ten_times_a_second_and_goes_on_quickly(fake):
    fake.set("a", 11)
    one = reader()
    end = latest(one, one.initialOffset())
    before = fake.asked
    while fake.now < 10:
        assert latest(one, end) == end
    assert 95 <= fake.asked - before <= 110
    # New rows make the polls as frequent as before.
    fake.set("a", 12)
    end = latest(one, end)
    began, before = fake.now, fake.asked
    latest(one, end)
    latest(one, end)
    assert (fake.asked - before, fake.now - began < 0.15) == (2, True)


def test_limits(fake):
    fake.set("a", 101)
    fake.set("b", 51)
    one = reader(maxOffsetsPerTrigger="30")
    start = one.initialOffset()
    assert latest(one, start)["t"] == {"a": [1, 1, 21], "b": [1, 1, 11]}
    assert latest(one, start, ReadMaxRows(3))["t"] == {"a": [1, 1, 3], "b": [1, 1, 2]}
    assert latest(one, start, ReadAllAvailable())["t"] == {"a": [1, 1, 101], "b": [1, 1, 51]}


def test_both_limits_hold(fake):
    fake.set("a", 1001)
    one = reader(maxOffsetsPerTrigger="30", maxBytesPerTrigger="20")
    # A record here has at most ten bytes.
    fake.topics["a"] = replace(fake.topics["a"], bytes=10_000)
    assert latest(one, one.initialOffset())["t"]["a"] == [1, 1, 3]
    one = reader(maxOffsetsPerTrigger="30", maxBytesPerTrigger="20000")
    assert latest(one, one.initialOffset())["t"]["a"] == [1, 1, 31]


def test_a_batch_has_at_most_256_mib_unless_the_trigger_takes_all(fake):
    fake.set("a", 1001)
    fake.topics["a"] = replace(fake.topics["a"], bytes=1 << 40)
    sizes = []
    fake.fill = lambda whole, size: sizes.append(size) or whole.lo + 5
    one = reader()
    start = one.initialOffset()
    assert latest(one, start)["t"]["a"] == [1, 1, 6]
    assert sizes == [256 << 20]
    assert latest(one, start, ReadAllAvailable())["t"]["a"] == [1, 1, 1001]
    wide = reader(maxBytesPerTrigger=str(1 << 41))
    assert latest(wide, start)["t"]["a"] == [1, 1, 1001]


def test_a_limit_of_bytes_reads_one_record_at_least(fake):
    for n in range(100):
        fake.set(f"t{n:02}", 11)
    one = reader(maxBytesPerTrigger="1")
    end = latest(one, one.initialOffset())
    assert sum(hi - lo for _, lo, hi in end["t"].values()) == 1


@pytest.mark.parametrize("gaps", ["fail", "log", "emit"])
def test_what_has_gone_since_the_last_batch_is_one_step(fake, gaps):
    fake.set("a", 11)
    fake.set("b", 11)
    one = reader(gaps=gaps, maxOffsetsPerTrigger="10", maxRecordsPerPartition="10")
    end = latest(one, latest(one, one.initialOffset()))
    fake.set("a", 50_001, earliest=49_991)
    now = latest(one, end)
    assert now["t"] == {"a": [1, 49_991, 50_001], "b": [1, 11, 11]}
    # The engine is asked once what became of the others.
    assert spans(one.partitions(end, now)) == [("a", 1, 11, 49_991), ("a", 1, 49_991, 50_001)]
    assert latest(one, now) == now
    assert one.reportLatestOffset()["lag"] == {"a": 0, "b": 0}


def test_a_topic_that_lost_all_its_unread_records_is_one_batch(fake):
    fake.set("a", 11)
    one = reader(failOnDataLoss="false")
    end = latest(one, one.initialOffset())
    fake.set("a", 5001, earliest=5001)
    now = latest(one, end)
    assert now["t"] == {"a": [1, 5001, 5001]}
    assert spans(one.partitions(end, now)) == [("a", 1, 11, 5001)]
    assert latest(one, now) == now


def test_topics_that_are_other_ones(fake):
    fake.set("a", 11, topic_id=1)
    one, other = reader(), reader(failOnDataLoss="false")
    end = latest(one, one.initialOffset())
    fake.set("a", 31, topic_id=2, earliest=4)
    with pytest.raises(DataLoss, match="recreated"):
        latest(one, end)
    assert latest(other, end)["t"]["a"] == [2, 4, 31]


def test_a_deleted_topic_is_a_loss_if_it_had_unread_records(fake):
    fake.set("a", 11)
    one = reader(maxOffsetsPerTrigger="6")
    part = latest(one, one.initialOffset())
    whole = latest(one, part)
    assert (part["unread"], "unread" in whole) == (["a"], False)
    del fake.topics["a"]
    # The checkpoint says it, in another run too.
    for run in (one, reader()):
        with pytest.raises(DataLoss, match="'a' was deleted"):
            latest(run, part)
    assert latest(reader(), whole) == whole
    assert latest(reader(failOnDataLoss="false"), part) == part


def test_unread_records_that_only_a_poll_has_seen_are_lost_too(fake):
    fake.set("a", 11)
    one = reader(minOffsetsPerTrigger="10")
    end = latest(one, one.initialOffset())
    fake.set("a", 12)
    assert latest(one, end) == end
    del fake.topics["a"]
    with pytest.raises(DataLoss, match="deleted"):
        latest(one, end)


def test_a_deleted_topic_of_a_pattern_is_forgotten_after_a_hundred_batches(fake):
    fake.set("old", 11)
    fake.set("live", 2)
    one = reader()
    at = latest(one, one.initialOffset())
    head = fake.topics.pop("old")
    for number in range(1, 101):
        fake.set("live", number + 2)
        at = latest(one, at)
        assert at["gone"] == {"old": number}
        assert at["t"]["old"] == [1, 11, 11]
        assert latest(reader(), json.loads(json.dumps(at))) == at
    # The same topic, on a server that has it again, goes on where it was.
    fake.topics["old"] = head
    fake.set("live", 200)
    back = latest(one, at)
    assert ("gone" in back, back["t"]["old"]) == (False, [1, 11, 11])
    del fake.topics["old"]
    fake.set("live", 300)
    at = latest(one, at)
    assert sorted(at["t"]) == ["live"]
    assert "gone" not in at


def test_a_head_that_went_back_is_a_loss_but_a_lost_tail_is_not(fake):
    fake.set("a", 11)
    one, other = reader(), reader(failOnDataLoss="false")
    end = latest(one, one.initialOffset())
    # A crash lost records that were read: their seqs are not assigned again.
    fake.set("a", 6, after=20)
    assert latest(one, end) == end
    # A backup was restored.
    fake.set("a", 6)
    with pytest.raises(DataLoss, match="rewound"):
        latest(one, end)
    # Records that are written from now on are new.
    back = latest(other, end)
    assert (back["t"]["a"], spans(other.partitions(end, back))) == ([1, 6, 6], [])
    fake.set("a", 8)
    assert latest(other, back)["t"]["a"] == [1, 6, 8]


def test_a_topic_that_is_left_out_of_the_subscription_is_no_loss(fake):
    fake.set("a", 11)
    fake.set("b", 11)
    one = reader(subscribePattern="a|b")
    end = latest(one, one.initialOffset())
    other = reader(subscribePattern="a")
    del fake.topics["b"]
    assert latest(other, end) == end
    fake.set("a", 21)
    narrowed = latest(other, end)
    assert spans(other.partitions(end, narrowed)) == [("a", 1, 11, 21)]
    # It keeps its place: subscribed again it goes on there.
    fake.set("b", 16)
    again = reader(subscribePattern="a|b")
    assert spans(again.partitions(narrowed, latest(again, narrowed))) == [("b", 1, 11, 16)]


def test_a_topic_that_never_was_fails_unless_it_may_be_missing(fake):
    fake.set("a", 11)
    given = {"subscribe": "a,b"}
    strict = reader(**given)
    with pytest.raises(TopicsError, match="allowMissingTopics"):
        strict.initialOffset()
    lenient = reader(**given, allowMissingTopics="true")
    end = latest(lenient, lenient.initialOffset())
    with pytest.raises(TopicsError, match="'b' was not found"):
        latest(strict, end)
    fake.set("b", 6)
    assert spans(lenient.partitions(end, latest(lenient, end))) == [("b", 1, 1, 6)]


def test_a_start_beyond_the_end_is_a_loss_in_batch_and_stream(fake):
    # Seqs 11 to 19 were lost in a crash: 20 is the next.
    fake.set("a", 11, after=20)
    for seq, first in ((5, 5), (11, 11), (20, 20)):
        start = {"startingOffsets": f'{{"a": {seq}}}'}
        assert reader(**start).initialOffset()["t"]["a"] == [1, first, first]
        batch.Snapshot.take(options_of(subscribe="a", **start))
    start = {"startingOffsets": '{"a": 21}'}
    for take in (
        lambda **more: reader(**start, **more).initialOffset(),
        lambda **more: batch.Snapshot.take(options_of(subscribe="a", **start, **more)),
    ):
        with pytest.raises(DataLoss, match="begins topic 'a' at seq 21"):
            take()
        take(failOnDataLoss="false")
    lenient = reader(**start, failOnDataLoss="false").initialOffset()
    assert lenient["t"]["a"] == [1, 20, 20]


def test_losses_between_batches_are_rows_where_that_is_asked_for(fake):
    fake.set("a", 11, topic_id=1)
    fake.set("b", 11, topic_id=2)
    one, log = reader(gaps="emit"), reader(gaps="log")
    end = latest(one, one.initialOffset())
    fake.set("a", 6, topic_id=3, earliest=2)
    fake.set("b", 8, topic_id=2)
    now = latest(one, end)
    for _ in range(2):
        losses, read = one.partitions(end, now)
        assert losses.value == (Loss("a", 11, 11, "recreated"), Loss("b", 8, 10, "rewound"))
        assert spans([read]) == [("a", 3, 2, 6)]
    assert all(isinstance(r, Range) for p in log.partitions(end, now) for r in p.value)
    # What follows is no loss any more.
    fake.set("a", 9, topic_id=3, earliest=2)
    then = latest(one, now)
    assert spans(one.partitions(now, then)) == [("a", 3, 6, 9)]


def test_available_now_ends_where_the_heads_were(fake):
    fake.set("a", 11)
    one = reader()
    start = one.initialOffset()
    one.prepareForTriggerAvailableNow()
    fake.set("a", 50)
    fake.set("b", 50)
    end = latest(one, start)
    assert end["t"] == {"a": [1, 1, 11]}
    assert latest(one, end) == end


def self_limited(monkeypatch, **options):
    """The reader of a Spark that tells it neither the start nor the limit of a batch."""
    monkeypatch.setattr(source, "ADMITS_ROWS", False)
    topics = {} if "subscribe" in options else {"subscribePattern": ".*"}
    given = CaseInsensitiveDict({"url": "http://h:1", **topics, **options})
    return DefaultSource(given).streamReader(SCHEMA)


def test_a_reader_that_is_told_no_start_begins_where_the_last_batch_ended(fake, monkeypatch):
    fake.set("a", 11)
    one = self_limited(monkeypatch, startingOffsets="latest")
    first = one.latestOffset()
    assert first == one.initialOffset()
    fake.set("a", 21)
    end = one.latestOffset()
    assert spans(one.partitions(first, end)) == [("a", 1, 11, 21)]
    assert json.dumps(one.latestOffset()) == json.dumps(end)
    fake.set("a", 31)
    assert one.latestOffset()["t"] == {"a": [1, 21, 31]}


def test_a_reader_that_is_told_no_start_learns_it_from_a_checkpoint(fake, monkeypatch):
    fake.set("a", 31)
    # The last batch of the checkpoint was committed, or it is planned once more before the next.
    last = {"v": 1, "t": {"a": [1, 11, 21]}}
    for planned in ([], [({"v": 1, "t": {"a": [1, 1, 11]}}, last)]):
        one = self_limited(monkeypatch, maxOffsetsPerTrigger="5")
        assert one.partitions(last, last) == []
        for start, end in planned:
            assert spans(one.partitions(start, end)) == [("a", 1, 11, 21)]
        assert one.latestOffset()["t"] == {"a": [1, 21, 26]}
    # Nothing new since the checkpoint: the text of its offset.
    fake.set("a", 21)
    one = self_limited(monkeypatch)
    one.partitions(last, last)
    assert json.dumps(one.latestOffset()) == json.dumps(last)


def test_an_offset_is_left_behind_whether_its_batch_was_planned_or_not(fake, monkeypatch):
    """A batch whose rows nobody reads is not planned; one that is read late is planned late."""
    fake.set("a", 101)
    one = self_limited(monkeypatch, maxOffsetsPerTrigger="10")
    first, second = one.latestOffset(), one.latestOffset()
    assert [end["t"]["a"] for end in (first, second)] == [[1, 1, 11], [1, 11, 21]]
    assert spans(one.partitions(one.initialOffset(), first)) == [("a", 1, 1, 11)]
    assert one.latestOffset()["t"]["a"] == [1, 21, 31]


def test_a_reader_limits_itself_where_spark_does_not(fake, monkeypatch):
    fake.set("a", 101)
    fake.set("b", 51)
    one = self_limited(monkeypatch, maxOffsetsPerTrigger="30")
    ends = [one.latestOffset()["t"] for _ in range(6)]
    assert ends[0] == {"a": [1, 1, 21], "b": [1, 1, 11]}
    assert [sum(hi - lo for _, lo, hi in end.values()) for end in ends[:5]] == [30] * 5
    assert ends[4] == ends[5] == {"a": [1, 81, 101], "b": [1, 41, 51]}
    fake.topics = {}
    fake.set("a", 1001)
    fake.topics["a"] = replace(fake.topics["a"], bytes=10_000)
    one = self_limited(monkeypatch, maxBytesPerTrigger="20")
    assert [one.latestOffset()["t"]["a"] for _ in range(2)] == [[1, 1, 3], [1, 3, 5]]


def test_without_limits_a_reader_that_is_told_no_trigger_takes_all(fake, monkeypatch, caplog):
    """Its batch may be the only one of `availableNow`."""
    fake.set("a", 1001)
    fake.topics["a"] = replace(fake.topics["a"], bytes=1 << 40)
    assert self_limited(monkeypatch).latestOffset()["t"]["a"] == [1, 1, 1001]
    assert caplog.text == ""


def test_a_batch_that_a_reader_cuts_is_logged_once(fake, monkeypatch, caplog):
    fake.set("a", 101)
    one = self_limited(monkeypatch, maxOffsetsPerTrigger="60")
    one.latestOffset()
    assert caplog.text.count("ends a batch before the newest record") == 1
    fake.set("a", 1001)
    one.latestOffset()
    assert caplog.text.count("ends a batch before the newest record") == 1
    caplog.clear()
    self_limited(monkeypatch, maxOffsetsPerTrigger="1000").latestOffset()
    assert caplog.text == ""


def test_the_reader_is_the_one_for_this_spark():
    given = CaseInsensitiveDict({"url": "http://h:1", "subscribe": "a"})
    one = DefaultSource(given).streamReader(SCHEMA)
    told = inspect.signature(DataSourceStreamReader.latestOffset).parameters.keys() - {"self"}
    assert inspect.signature(one.latestOffset).parameters.keys() == told
