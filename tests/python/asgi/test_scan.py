"""Ranges as Arrow streams, and Arrow bodies of writes, on a live server."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from support.asgi_driver import Driver, run
from support.http_client import Http, Reply
from topics_engine.asgi.streaming import FAIL, MORE

pa = pytest.importorskip("pyarrow")

ARROW = "application/vnd.apache.arrow.stream"
END = b"\xff\xff\xff\xff\0\0\0\0"
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.map_(pa.string(), pa.string())),
        ("data", pa.string()),
        ("gap_to", pa.int64()),
        ("gap_reason", pa.string()),
    ]
)


def ipc(columns: dict[str, Any]) -> bytes:
    table = pa.table(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def post(api: Http, path: str, columns: dict[str, Any]) -> Reply:
    return api("POST", path, ipc(columns), {"Content-Type": ARROW})


def scan(api: Http, topic: str, **asked: Any) -> Any:
    reply = api("POST", f"/v0/topics/{topic}/scan", asked)
    assert (reply.status, reply.headers["content-type"]) == (200, ARROW), reply.body[:500]
    assert reply.body.endswith(END)
    return pa.ipc.open_stream(reply.body).read_all()


def collect(reader: Any, seen: list[int]) -> None:
    for batch in reader:
        seen += batch["seq"].to_pylist()


def fill(api: Http, topic: str, count: int, size: int = 10) -> None:
    step = min(1000, 100_000 // size)
    for at in range(0, count, step):
        rows = range(at, min(at + step, count))
        columns = {
            "data": [json.dumps([n, "x" * size]) for n in rows],
            "tag": pa.array([f"k:{n % 3}" for n in rows]).dictionary_encode(),
            "node": [None if n % 2 else "n" for n in rows],
            "meta": pa.array(
                [[("n", str(n))] if n % 5 == 0 else None for n in rows],
                pa.map_(pa.string(), pa.string()),
            ),
        }
        reply = post(api, f"/v0/topics/{topic}", columns)
        assert reply.json["count"] == len(rows), reply


def test_what_is_written_as_arrow_is_scanned(api: Http, topic: str) -> None:
    fill(api, topic, 2500)
    table = scan(api, topic, from_seq=0)
    assert table.schema.equals(SCHEMA)
    metadata = {k.decode(): int(v) for k, v in table.schema.metadata.items()}
    state = api("GET", f"/v0/topics/{topic}").json
    assert metadata == {"topic_id": state["topic_id"], "head_seq": 2500, "to_seq": 2500}
    assert table["seq"].to_pylist() == list(range(1, 2501))
    rows = table.to_pylist()
    assert all(row["topic"] == topic for row in rows)
    assert [json.loads(r["data"])[0] for r in rows] == list(range(2500))
    assert [r["tag"] for r in rows] == [f"k:{n % 3}" for n in range(2500)]
    assert [r["node"] for r in rows] == ["n" if n % 2 == 0 else None for n in range(2500)]
    assert [r["meta"] for r in rows[:6]] == [[("n", "0")], None, None, None, None, [("n", "5")]]
    # A read shows the same, record by record.
    page = api("POST", f"/v0/topics/{topic}/diff", {"limit": 3, "include_tags": True}).json
    assert [r["data"] for r in page["records"]] == [json.loads(r["data"]) for r in rows[:3]]
    assert [r["$tag"] for r in page["records"]] == ["k:0", "k:1", "k:2"]
    assert page["records"][0]["meta"] == {"n": "0"}


def test_a_scan_goes_on_where_one_was_cut(api: Http, topic: str) -> None:
    fill(api, topic, 3000, size=500)
    reply = api("POST", f"/v0/topics/{topic}/scan", {"to_seq": 2900})
    reader = pa.ipc.open_stream(reply.body[: len(reply.body) * 2 // 3])
    pinned = int(reader.schema.metadata[b"to_seq"])
    assert pinned == 2900
    seen: list[int] = []
    with pytest.raises((OSError, pa.ArrowInvalid)):
        collect(reader, seen)
    rest = scan(api, topic, from_seq=seen[-1] if seen else 0, to_seq=pinned, columns=["seq"])
    assert rest.schema.names == ["seq"]
    assert seen + rest["seq"].to_pylist() == list(range(1, 2901))


def test_rows_are_chosen(api: Http, topic: str) -> None:
    fill(api, topic, 300)
    assert scan(api, topic, match=["tag", "Glob", "k:1*"])["seq"].to_pylist() == list(
        range(2, 301, 3)
    )
    assert scan(api, topic, nodes="n")["seq"].to_pylist() == list(range(1, 301, 2))
    assert scan(api, topic, nodes=["n"], match="k:0")["seq"].to_pylist() == list(range(1, 301, 6))
    middle = scan(api, topic)["ts"][150].as_py()
    millis = round(middle.timestamp() * 1000)
    late = scan(api, topic, ts_from=millis)["seq"].to_pylist()
    early = scan(api, topic, ts_to=millis)["seq"].to_pylist()
    assert early + late == list(range(1, 301))
    assert scan(api, topic, data_type="binary")["data"].type == pa.binary()
    assert scan(api, topic, from_seq=300).num_rows == 0
    assert scan(api, topic, from_seq="earliest", to_seq=2).num_rows == 2


def test_a_gap_is_a_row(api: Http, topic: str) -> None:
    assert api("PUT", f"/v0/topics/{topic}", {"cap_records": 100}).status == 201
    fill(api, topic, 1000)
    rows = scan(api, topic, from_seq=0).to_pylist()
    assert rows[0] | {"gap_reason": ""} == dict.fromkeys(SCHEMA.names) | {
        "topic": topic, "seq": 1, "gap_to": 900, "gap_reason": "",
    }  # fmt: skip
    assert rows[0]["gap_reason"] == "cap"
    assert [r["seq"] for r in rows[1:]] == list(range(901, 1001))
    assert scan(api, topic, from_seq="earliest").num_rows == 100


def test_a_range_is_split(api: Http, topic: str) -> None:
    fill(api, topic, 1000)
    path = f"/v0/topics/{topic}/split"
    answer = api("POST", path, {"from_seq": 100, "to_seq": 900, "max_records": 250}).json
    assert (answer["records"], answer["to_seq"], len(answer["splits"])) == (800, 900, 4)
    seen: list[int] = []
    for part in answer["splits"]:
        rows = scan(api, topic, from_seq=part["from_seq"], to_seq=part["to_seq"])
        assert rows.num_rows == part["records"]
        seen += rows["seq"].to_pylist()
    assert seen == list(range(101, 901))
    assert len(api("POST", path, {"max_bytes": answer["bytes"] // 8}).json["splits"]) >= 8
    assert api("POST", path, {"from_seq": 1000}).json["splits"] == []
    shown = api("GET", f"/v0/topics/{topic}/segments").json
    assert sum(s["count"] for s in shown["segments"]) == 1000


def test_refusals(api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert api("POST", f"{path}/scan", {}).code == "topic_not_found"
    for columns, word in [
        ({"data": ["1", "{"]}, "records[1].data"),
        ({"data": ["1", None]}, "records[1].data must not be null"),
        ({"x": ["1"]}, "data is missing"),
        ({"data": pa.array([], pa.string())}, "must not be empty"),
        ({"data": [1]}, "data must be a column of utf8 or binary, not of Int64"),
        ({"data": ["1"], "meta": ["x"]}, "meta must be a column of map<utf8, utf8>, not of Utf8"),
    ]:
        refused = post(api, path, columns)
        message = refused.json["error"]["message"]
        assert (refused.code, word in message) == ("invalid_request", True), message
    assert api("GET", path).code == "topic_not_found", "a bad row refuses all"
    assert post(api, path, {"data": ["1"] * 1001}).code == "batch_too_large"
    assert post(api, path, {"data": ['"' + "x" * 10_000 + '"']}).code == "record_too_large"
    for body in (b"", b"{}", ipc({"data": ["1"]})[:-20]):
        refused = api("POST", path, body or b" ", {"Content-Type": ARROW})
        assert refused.code == "invalid_request"
    assert post(api, path, {"data": ["1"]}).status == 201
    for bad in ({"columns": ["date"]}, {"nodes": []}, {"from_seq": "x"}, {"data_type": "json"}):
        assert api("POST", f"{path}/scan", bad).code == "invalid_request"
    assert api("POST", f"{path}/scan", {}, {"Accept": "application/json"}).status == 406
    assert api("POST", f"{path}/split", {"max_records": 0}).code == "invalid_request"


@pytest.mark.parametrize("offered", [True, False])
def test_a_failed_scan_ends_without_more(offered: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        driver = Driver()
        await driver.ready()
        driver.http.pulls = [([b"one"], MORE), ([b"two"], FAIL)]
        driver.http.why = ("invalid_request", "record 7 is binary")
        aborted: list[int] = []
        scope: dict[str, Any] = {}
        if offered:
            scope["extensions"] = {"topics.abort": {"close": lambda: aborted.append(1)}}
        with caplog.at_level("WARNING", "topics_engine.asgi"):
            sent = await driver.request("POST", "/v0/topics/t/scan", b"{}", scope=scope)
        expected = "/v0/topics/t/scan breaks off: invalid_request: record 7 is binary"
        assert caplog.messages == [expected]
        assert (sent.status, sent.headers[b"content-type"]) == (200, ARROW.encode())
        assert sent.body.endswith(b"onetwo")
        assert len(aborted) == offered

    run(go())


def test_a_scan_waits_for_its_client() -> None:
    """Nothing is pulled before the client has taken what was."""

    async def go() -> None:
        driver = Driver()
        await driver.ready()
        driver.http.pulls = [([b"x"], MORE)] * 50
        taken = asyncio.Event()
        sending = asyncio.ensure_future(
            driver.request("POST", "/v0/topics/t/scan", b"{}", taken=taken)
        )
        while not driver.http.calls:
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(driver.http.pulls) >= 49
        taken.set()
        await sending
        assert driver.http.pulls == []

    run(go())
