"""Wrong calls: every client refuses them with the same class, code and message."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import topics_engine as te
from support.server import Server

from .adapter import CLIENTS, SHARED, all_of, datas

Call = Callable[[Any], Any]

SEQ = "must be a seq (an integer from 0 to 2^53 - 1)"
POSITION = f"{SEQ}, te.EARLIEST or te.LATEST"
NAME = (
    "must be a name (1 to 255 ASCII letters, digits, `.`, `_`, `:` and `-`; the first is a letter "
    "or a digit)"
)
DURATION = "must be a duration (seconds, a timedelta, or text like '90s', '5m', '1h', '7d')"
TIME = "must be a time (an aware datetime, ISO text with an offset, or epoch milliseconds)"
COUNT = "must be an integer from 1 to 4294967295"
SIZE = "must be a size from 1 to 4294967295 bytes (an integer, or text like '64MiB' or '1GB')"
FLAG = "must be True or False"
TAG = "must be a tag, or a prefix and one `*` at the end"
NAIVE = datetime(2026, 1, 1, 12)
RECORD = te.Record("t", 1, 0, None, None, None, b"1", False)

WRONG: list[tuple[Call, str]] = [
    # Names.
    (lambda h: h.db.topic("no spaces"), f"topic {NAME}, not 'no spaces'"),
    (lambda h: h.db.topic(""), f"topic {NAME}, not ''"),
    (lambda h: h.db.topic(7), f"topic {NAME}, not 7"),
    (lambda h: h.db.topic("ü"), f"topic {NAME}, not 'ü'"),
    (lambda h: h.db.queue("a/b"), f"queue {NAME}, not 'a/b'"),
    (lambda h: h.t.consumer("-c"), f"consumer {NAME}, not '-c'"),
    (lambda h: h.t.drop_consumer(None), f"consumer {NAME}, not None"),
    (lambda h: h.db.router("r r"), f"router {NAME}, not 'r r'"),
    (lambda h: h.db.router("r", source="s", dest="*"), f"dest {NAME}, not '*'"),
    (lambda h: h.db.transaction("w/1"), f"writer {NAME}, not 'w/1'"),
    (lambda h: h.db.forget_writer(1.5), f"writer {NAME}, not 1.5"),
    # Seqs, and where to begin.
    (lambda h: h.t.read(after=-1), f"after {POSITION}, not -1"),
    (lambda h: h.t.read(after="7"), f"after {POSITION}, not '7'"),
    (lambda h: h.t.read(after=1.0), f"after {POSITION}, not 1.0"),
    (lambda h: h.t.read(after=None), f"after {POSITION}, not None"),
    (lambda h: h.t.read(after=True), f"after {POSITION}, not True"),
    (lambda h: h.t.read(after=1 << 64), f"after {POSITION}, not 18446744073709551616"),
    (lambda h: h.t.read(after="tail"), f"after {POSITION}, not 'tail'"),
    (lambda h: h.t.read(to_seq="9"), f"to_seq {SEQ}, not '9'"),
    (lambda h: h.t.wait(-1), f"after {SEQ}, not -1"),
    (lambda h: h.db.watch({"t": "start"}), f"topics['t'] {POSITION}, not 'start'"),
    (lambda h: h.db.watch({"t": -5}), f"topics['t'] {POSITION}, not -5"),
    (lambda h: h.c.commit("3"), f"seq {SEQ}, not '3'"),
    (lambda h: h.c.seek("end"), f"position {POSITION}, not 'end'"),
    (lambda h: h.c.seek(), "seek needs either a position or ts"),
    (lambda h: h.c.seek(1, ts=1), "seek needs either a position or ts"),
    (lambda h: h.t.append(1, expect_head=-1), f"expect_head {SEQ}, not -1"),
    (lambda h: h.t.delete(before="4"), f"before {SEQ}, not '4'"),
    (lambda h: h.t.delete(), "delete needs before, tag or seqs: to delete all records, use drop"),
    (lambda h: h.t.delete(seqs=[1, "2"]), f"seqs[1] {SEQ}, not '2'"),
    (lambda h: h.t.delete(seqs=7), "seqs must be a list of seqs, not 7"),
    (lambda h: h.t.delete(seqs=[1], tag="a"), "delete takes seqs, or before and tag, not both"),
    (lambda h: h.q.redrive(seqs=[1, "2"]), f"seqs[1] {SEQ}, not '2'"),
    (lambda h: h.q.redrive(seqs="12"), "seqs must be a list of seqs, not '12'"),
    (lambda h: h.t.consumer("c", start="end"), "start must be te.EARLIEST or te.LATEST, not 'end'"),
    # Numbers.
    (lambda h: h.t.read(limit=0), f"limit {COUNT}, not 0"),
    (lambda h: h.t.read(limit=-3), f"limit {COUNT}, not -3"),
    (lambda h: h.t.read(limit=2.5), f"limit {COUNT}, not 2.5"),
    (lambda h: h.t.tail("5"), "count must be an integer from 0 to 4294967295, not '5'"),
    (lambda h: h.q.claim("w", 0), f"max {COUNT}, not 0"),
    (lambda h: h.q.claim("w", max="many"), f"max {COUNT}, not 'many'"),
    (lambda h: h.q.peek(max=-1), f"max {COUNT}, not -1"),
    (lambda h: h.q.redrive(limit=0), f"limit {COUNT}, not 0"),
    (lambda h: h.c.read(max_records=0), "max_records must be an integer from 1 to 2000, not 0"),
    (lambda h: h.c.read(max_bytes=1 << 40), f"max_bytes {SIZE}, not 1099511627776"),
    (lambda h: h.c.read(max_bytes="8 megs"), f"max_bytes {SIZE}, not '8 megs'"),
    (lambda h: h.db.watch("t", limit=0), f"limit {COUNT}, not 0"),
    (lambda h: h.q.append(1, lane=10), "lane must be an integer from 0 to 9, not 10"),
    # Durations and times.
    (lambda h: h.t.append(1, ttl=-1), f"ttl {DURATION}, not negative, not -1"),
    (lambda h: h.t.append(1, ttl="1 fortnight"), f"ttl {DURATION}, not '1 fortnight'"),
    (lambda h: h.t.append(1, ttl=True), f"ttl {DURATION}, not True"),
    (lambda h: h.q.claim("w", lease="soon"), f"lease {DURATION}, not 'soon'"),
    (lambda h: h.q.claim("w", wait=None), f"wait {DURATION}, not None"),
    (lambda h: h.q.claim("w", wait=float("nan")), f"wait {DURATION}, not negative, not nan"),
    (lambda h: h.q.append(1, delay="1x"), f"delay {DURATION}, not '1x'"),
    (
        lambda h: h.t.wait(0, timeout=timedelta(seconds=-1)),
        f"timeout {DURATION}, not negative, not datetime.timedelta(days=-1, seconds=86399)",
    ),
    (
        lambda h: h.t.seek(ts=NAIVE),
        f"ts {TIME}: give the datetime a tzinfo, for example datetime.UTC, not {NAIVE!r}",
    ),
    (lambda h: h.t.seek(ts="yesterday"), f"ts {TIME}, not 'yesterday'"),
    (lambda h: h.t.read(since=1.5), f"since {TIME} or an age (90s, 5m, 1h, 7d), not 1.5"),
    (
        lambda h: h.t.read(since="2026-01-01"),
        f"since {TIME} or an age (90s, 5m, 1h, 7d): add the offset, for example"
        " 2026-01-01T00:00:00+00:00 for UTC, not '2026-01-01'",
    ),
    (
        lambda h: h.q.append(1, deliver_at=NAIVE),
        f"deliver_at {TIME}: give the datetime a tzinfo, for example datetime.UTC, not {NAIVE!r}",
    ),
    # Words, flags and text.
    (lambda h: h.t.read(gaps="ignore"), "gaps must be 'yield', 'raise' or 'skip', not 'ignore'"),
    (
        lambda h: h.t.consumer("c", "exactly_once"),
        "mode must be 'at_least_once' or 'at_most_once', not 'exactly_once'",
    ),
    (
        lambda h: h.q.peek(state="gone"),
        "state must be 'ready', 'leased', 'delayed' or 'dead', not 'gone'",
    ),
    (lambda h: h.t.append(1, sync="yes"), f"sync {FLAG}, not 'yes'"),
    (lambda h: h.t.append(1, block=0), f"block {FLAG}, not 0"),
    (lambda h: h.db.watch("t", events=1), f"events {FLAG}, not 1"),
    (lambda h: h.t.append(1, tag=7), "tag must be text, not 7"),
    (
        lambda h: h.t.append(1, tag="\ud800"),
        r"tag must be text without lone surrogates, not '\ud800'",
    ),
    (lambda h: h.t.append(1, origin=b"n"), "origin must be text, not b'n'"),
    (lambda h: h.t.append(1, meta={"k": 1}), "meta['k'] must be text, not 1"),
    (lambda h: h.t.append(1, meta=["k"]), "meta must be a mapping of text to text, not ['k']"),
    (
        lambda h: h.t.append(1, meta={"$x": "v"}),
        "meta has the reserved key '$x'; keys must not begin with $ or _topics_",
    ),
    (
        lambda h: h.t.append(1, idempotency_key=""),
        "idempotency_key must be text of 1 to 256 bytes, not ''",
    ),
    (lambda h: h.q.claim(""), "worker must be text of 1 to 128 bytes, not ''"),
    (lambda h: h.q.claim(3), "worker must be text, not 3"),
    (lambda h: h.q.ack([1]), "jobs must be jobs that a claim returned, not 1"),
    (lambda h: h.q.nack([None]), "jobs must be jobs that a claim returned, not None"),
    (lambda h: h.q.release(["1"]), "jobs must be jobs that a claim returned, not '1'"),
    (lambda h: h.db.transaction().ack(1), "jobs must be jobs that a claim returned, not 1"),
    (lambda h: h.t.read(tag="a*b*"), f"tag {TAG}, not 'a*b*'"),
    (lambda h: h.t.delete(tag="*a"), f"tag {TAG}, not '*a'"),
    (lambda h: h.t.read(exclude_nodes=[1]), "exclude_nodes[0] must be text, not 1"),
    (
        lambda h: h.t.read(exclude_nodes=1),
        "exclude_nodes must be a node or a list of nodes, not 1",
    ),
    (
        lambda h: h.db.watch(3),
        "topics must be a name, a list of names, or a mapping of names, not 3",
    ),
    # Records.
    (lambda h: h.t.append([]), "a write needs at least one record"),
    (lambda h: h.t.append_batch([]), "a write needs at least one record"),
    (lambda h: h.t.append_batch("abc"), "records must be a list of bytes, not 'abc'"),
    (lambda h: h.t.append_batch([b"a", "b"]), "records[1] must be bytes, not 'b'"),
    (
        lambda h: h.t.append([1, te.NewRecord(2, tag=3)]),  # type: ignore[arg-type]
        "records[1].tag must be text, not 3",
    ),
    (
        lambda h: h.t.append([{1, 2}]),
        "records[0].data cannot be encoded as JSON: Object of type set is not JSON serializable",
    ),
    (
        lambda h: h.t.append(n for n in [1]),
        "records[0].data cannot be encoded as JSON: Object of type generator is not JSON "
        "serializable; a batch is a list",
    ),
    (
        lambda h: h.t.append(RECORD),
        "records[0].data cannot be encoded as JSON: Object of type Record is not JSON "
        "serializable; give its data, or NewRecord(record.data, tag=record.tag)",
    ),
    (
        lambda h: h.q.append([1, te.NewRecord(2, delay="x")]),
        f"records[1].delay {DURATION}, not 'x'",
    ),
    (lambda h: h.q.append(1, group=7), "group must be text, not 7"),
    (lambda h: h.t.read(exclude_nodes={"a": 1}.values()), "exclude_nodes[0] must be text, not 1"),
    (lambda h: h.db.watch([7]), f"topics {NAME}, not 7"),
    (lambda h: h.db.watch({"t": None}), f"topics['t'] {POSITION}, not None"),
    # Ranges.
    (lambda h: h.db.scan("t", from_seq=0), "unknown option `from_seq`; did you mean `after`?"),
    (lambda h: h.db.scan("t", untill="1h"), "unknown option `untill`; did you mean `until`?"),
    (lambda h: h.db.scan("t", after=te.LATEST), f"after {SEQ} or te.EARLIEST, not LATEST"),
    (lambda h: h.db.scan("t", columns="seq"), "columns must be a list of text, not 'seq'"),
    (
        lambda h: h.db.scan("t", data_type="json"),
        "data_type must be 'string' or 'binary', not 'json'",
    ),
    (lambda h: h.db.scan("t", strong="yes"), f"strong {FLAG}, not 'yes'"),
    (lambda h: h.db.scan("no name"), f"topic {NAME}, not 'no name'"),
    (
        lambda h: h.db.split("t", max_bytes=0),
        "max_bytes must be a size from 1 to 9007199254740991 bytes "
        "(an integer, or text like '64MiB' or '1GB'), not 0",
    ),
    # Options.
    (
        lambda h: h.db.topic("new", durabilty="fsync"),
        "unknown option `durabilty`; did you mean `durability`?",
    ),
    (lambda h: h.db.topic("new", ttl_ms=1000), "unknown option `ttl_ms`; did you mean `ttl`?"),
    (lambda h: h.db.queue("new", lease="brief"), f"lease {DURATION}, not 'brief'"),
    (
        lambda h: h.db.topic("new", durability="fast").create(),
        "durability must be 'ephemeral', 'memory', 'disk' or 'fsync', not 'fast'",
    ),
    (
        lambda h: h.db.topic("new", cap_records=-1),
        "cap_records must be an integer from 0 to 9007199254740991, not -1",
    ),
    (lambda h: h.db.topic("new").create(paused="no"), f"paused {FLAG}, not 'no'"),
    (
        lambda h: h.db.router("r", source="t"),
        "a router needs both source and dest: give both, or neither for a handle",
    ),
]


async def handles(db: Any) -> SimpleNamespace:
    t = db.topic("t")
    await t.append([0, 1, 2])
    q = await db.queue("q")
    return SimpleNamespace(db=db, t=t, q=q, c=await t.consumer("c"))


async def refused(call: Call, h: SimpleNamespace) -> te.TopicsError:
    try:
        found = call(h)
        if inspect.isawaitable(found):
            await found
    except te.TopicsError as error:
        return error
    pytest.fail(f"not refused: {inspect.getsource(call)}")


async def test_wrong_arguments(db: Any) -> None:
    h = await handles(db)
    for call, message in WRONG:
        error = await refused(call, h)
        said = (type(error), error.code, str(error))
        assert said == (te.InvalidRequest, "invalid_request", message)
        assert isinstance(error, ValueError)
    assert (await h.t.state()).head_seq == 3
    assert [info.topic for info in await all_of(db.topics())] == ["q", "t"]


STATES: list[tuple[Call, type[te.TopicsError], str]] = [
    (lambda h: h.db.topic("none").state(), te.NotFound, "topic_not_found"),
    (lambda h: h.db.topic("none").delete(before=3), te.NotFound, "topic_not_found"),
    (lambda h: h.db.topic("none").append(1, create=False), te.NotFound, "topic_not_found"),
    (lambda h: h.db.topic("none").consumer("c"), te.NotFound, "topic_not_found"),
    (lambda h: h.db.topic("none").seek(ts=0), te.NotFound, "topic_not_found"),
    (lambda h: h.none.state(), te.NotFound, "router_not_found"),
    (lambda h: h.t.append(9, expect_head=7), te.HeadMismatch, "head_mismatch"),
    (lambda h: h.t.append(1, lane=3), te.Conflict, "not_a_queue"),
    (lambda h: h.c.commit(99), te.InvalidRequest, "invalid_request"),
    (lambda h: h.c.seek(99), te.InvalidRequest, "invalid_request"),
    (lambda h: h.t.drop(if_empty=True), te.Conflict, "topic_not_empty"),
    (lambda h: h.t.create(), te.AlreadyExists, "already_exists"),
    (lambda h: h.t.ensure(ttl="7d"), te.Conflict, "topic_exists_incompatible"),
    (lambda h: h.t.configure(type="queue"), te.Conflict, "topic_exists_incompatible"),
    (lambda h: h.db.topic("none").configure(ttl="7d"), te.NotFound, "topic_not_found"),
]
"""What the state of the database refuses."""


async def test_refusals_of_the_state_say_the_same(
    tmp_path_factory: pytest.TempPathFactory, server: Server
) -> None:
    said: dict[str, list[tuple[type, str, str]]] = {}
    for kind, client in CLIENTS.items():
        if kind in SHARED:
            opening = SHARED[kind](server)
        else:
            opening = client(tmp_path_factory.mktemp(kind) / "data")
        async with opening as db:
            h = await handles(db)
            h.none = await db.router("none")
            errors = [await refused(call, h) for call, _, _ in STATES]
            said[kind] = [(type(error), error.code, str(error)) for error in errors]
            assert isinstance(errors[0], LookupError)
    for kind, errors in said.items():
        assert errors == said["sync"], kind
        assert [error[:2] for error in errors] == [row[1:] for row in STATES]


async def test_what_is_tried_first_says_what_to_do(db: Any) -> None:
    h = await handles(db)
    t, q = (getattr(handle, "_handle", handle) for handle in (h.t, h.q))
    iterate = iter if isinstance(t, te.Topic) else aiter
    with pytest.raises(TypeError, match=r"a topic is not iterable: read\(\) ends at its head"):
        iterate(t)
    with pytest.raises(TypeError, match=r"a queue is not iterable: work\(worker\) follows it"):
        iterate(q)
    assert t
    assert q
    if isinstance(t, te.Topic):
        for call, hint in (
            (lambda: len(t), r"state\(\).count"),
            (lambda: 1 in t, r"read\(after=seq - 1, limit=1\)"),
            (lambda: t[1:2], r"read\(after=…, limit=…\)"),
        ):
            with pytest.raises(TypeError, match=hint):
                call()


async def test_a_handle_is_taken_where_a_topic_is_named(db: Any) -> None:
    h = await handles(db)
    t, q = (getattr(handle, "_handle", handle) for handle in (h.t, h.q))
    for topics in (t, [t, q], {t: 3}):
        async with db.watch(topics) as watch:
            await h.t.append("news")
            assert (await watch.next(wait=30)).topic == "t"
    assert (await (await db.router("r", t, "copies")).state()).source == "t"
    assert sum(part.records for part in await db.split(t)) == 6


@pytest.mark.parametrize("opening", [te.open, te.aio.open])
async def test_wrong_paths_and_settings(opening: Any, tmp_path: Path) -> None:
    for path, settings, message in (
        (7, {}, "path must be a path (text or os.PathLike), not 7"),
        ("a\0b", {}, "path must be a path without null characters, not 'a\\x00b'"),
        (
            tmp_path / "data",
            {"durability": "fsync"},
            "arguments: unknown setting `durability`; it is an option of a topic: "
            "db.topic(name, durability=…)",
        ),
        (
            "http://localhost:4000",
            {},
            "http://localhost:4000 is the URL of a server, not a directory: "
            "use te.connect('http://localhost:4000')",
        ),
        (
            tmp_path / "data",
            {"max_topic": 3},
            "arguments: unknown setting `max_topic`; did you mean `max_topics`?",
        ),
    ):
        error = await refused(lambda _: opening(path, **settings), SimpleNamespace())  # noqa: B023
        assert (type(error), str(error)) == (te.InvalidRequest, message)
    with pytest.raises(te.InvalidRequest, match="give 'http://localhost:4000'"):
        te.connect("localhost:4000")


async def test_integers_of_numpy_and_pandas(db: Any) -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    t = db.topic("t")
    await t.append(list(range(6)))
    frame = pd.DataFrame({"seq": [2, 4]})
    for two, four in (
        (np.int64(2), np.uint32(4)),
        (np.array([2, 4])[0], np.array([2, 4])[1]),
        (frame["seq"].iloc[0], frame["seq"].max()),
    ):
        assert datas(await all_of(t.read(two, to_seq=four))) == [2, 3]
        assert datas(await all_of(t.read(after=two, limit=two))) == [2, 3]
        assert len(await t.tail(two)) == 2
        assert await t.wait(four, timeout=two)
        async with db.watch({"t": four}) as watch:
            assert (await watch.next(wait=30)).seq == 5
        c = await t.consumer(f"c{id(two)}")
        assert await c.seek(two) == 2
        await c.commit(four)
        assert c.cursor == 4
        ack = await t.append(9, expect_head=np.int64((await t.state()).head_seq))
        assert (await t.delete(before=two, tag="none")).deleted == 0
        assert type(ack.first_seq) is int
