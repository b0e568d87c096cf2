"""Columns over HTTP: reads that stream, however large; what fails, and what its client is told;
what a server holds for a slow client; Arrow bodies that are refused."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.gate import EXPLORES, figure, sized
from support.h2_client import Http2Port, StreamReset
from support.http_client import Http, Reply, connection
from support.server import Server, running
from support.waiting import until

from .pending import DEADLINE, MOST_WAIT_MS, Pending, until_read
from .test_scan import ARROW, END, SCHEMA, fill, ipc, post

pa = pytest.importorskip("pyarrow")

# A limit on the memory of the server, which is disturbed by what runs beside it.
pytestmark = [pytest.mark.serial] if EXPLORES else []

JSON = {"Content-Type": "application/json", "Accept": ARROW}
BROKEN = (http.client.IncompleteRead, ConnectionResetError, StreamReset)


def columns(api: Http, path: str, **asked: Any) -> Any:
    reply = api("POST", path, asked, JSON)
    assert (reply.status, reply.headers["content-type"]) == (200, ARROW), reply.body[:500]
    assert "content-length" not in reply.headers
    assert reply.body.endswith(END)
    return pa.ipc.open_stream(reply.body).read_all()


def compressed(rows: dict[str, Any], codec: str) -> bytes:
    """An Arrow body with compressed buffers."""
    table, sink = pa.table(rows), io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def numbers(table: Any) -> dict[str, int]:
    return {k.decode(): int(v) for k, v in table.schema.metadata.items()}


def test_a_read_streams_as_far_as_its_limit(api: Http, topic: str) -> None:
    fill(api, topic, 12_000, size=100)
    path = f"/v0/topics/{topic}/diff"
    at, seen = 0, []
    while at < 12_000:
        table = columns(api, path, from_seq=at, limit=5000)
        assert table.schema.equals(SCHEMA)
        assert (numbers(table)["head_seq"], len(table)) == (12_000, min(5000, 12_000 - at))
        at = numbers(table)["to_seq"]
        seen += table["seq"].to_pylist()
        # The connection goes on, with requests of another kind too.
        assert api("GET", f"/v0/topics/{topic}").json["head_seq"] == 12_000
    assert seen == list(range(1, 12_001))
    # A million unless less is wanted; `max_batch_bytes` is what a batch has.
    assert len(columns(api, path)) == 12_000
    small = api("POST", path, {"limit": 2000, "max_batch_bytes": 10_000}, JSON).body
    sizes = [batch.num_rows for batch in pa.ipc.open_stream(small)]
    assert sum(sizes) == 2000
    assert max(sizes) < 200
    # What comes before it is hot, and what comes behind it.
    page = api("POST", path, {"from_seq": 11_999}).json
    assert (len(page["records"]), page["next_from_seq"]) == (1, 12_000)
    assert len(columns(api, path, tail=3, columns=["seq"])) == 3


def test_columns_are_waited_for(api: Http, server: Server, topic: str) -> None:
    fill(api, topic, 3)
    asked = {"from_seq": 3, "wait_ms": MOST_WAIT_MS}
    waiting = Pending(server.port, f"/v0/topics/{topic}/diff", asked, JSON)
    until_read(api)
    fill(api, topic, 2)
    table = pa.ipc.open_stream(waiting.reply().body).read_all()
    assert table["seq"].to_pylist()[0] == 4
    empty = columns(api, f"/v0/topics/{topic}/diff", from_seq=5, wait_ms=1)
    assert (len(empty), numbers(empty)["to_seq"]) == (0, 5)


def test_what_fails_at_once_is_refused_before_a_byte(api: Http, topic: str) -> None:
    fill(api, topic, 10)
    assert api("POST", f"/v0/topics/{topic}", {"records": [{"data_b64": "/w=="}]}).status == 200
    for verb in ("scan", "diff"):
        path = f"/v0/topics/{topic}/{verb}"
        refused = api("POST", path, {"data_type": "string"}, JSON)
        message = refused.json["error"]["message"]
        assert (refused.status, refused.code) == (400, "invalid_request")
        assert message.startswith("record 11 is binary"), message
        assert "data_type=binary" in message
        assert len(columns(api, path, data_type="binary")) == 11
        # Only who wants the column is refused.
        assert len(columns(api, path, data_type="string", columns=["seq"])) == 11
        assert api("POST", f"/v0/topics/{topic}-none/{verb}", {}, JSON).code == "topic_not_found"


def broken(port: int, path: str, after: int) -> int | Reply:
    """Asks for columns that cannot be had to their end: the last seq that came before they broke
    off, or the refusal."""
    asked = json.dumps({"data_type": "string", "from_seq": after}).encode()
    with contextlib.closing(connection(port)) as client:
        client.request("POST", path, asked, JSON)
        with contextlib.closing(client.getresponse()) as answer:
            if answer.status != 200:
                return Reply(answer.status, dict(answer.getheaders()), answer.read())
            came = taken(answer)
    with contextlib.suppress(pa.ArrowInvalid, OSError):
        for batch in pa.ipc.open_stream(came):
            after = batch["seq"][-1].as_py()
    return after


def taken(answer: Any) -> bytes:
    """What comes of an answer that breaks off."""
    came = bytearray()
    try:
        while piece := answer.read1(1 << 20):
            came += piece
    except BROKEN:
        assert not came.endswith(END)
        return bytes(came)
    raise AssertionError("it came to its end")


@pytest.mark.parametrize("hot", [True, False])
def test_what_fails_midway_is_told_to_who_asks_for_the_rest(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], hot: bool
) -> None:
    streams = 0
    for live in running(tmp_path / "data", {"TOPICS_HOT_PROTOCOL": str(int(hot))}):
        api = Http(live.port)
        fill(api, "t", 9000, size=1000)
        api("POST", "/v0/topics/t", {"records": [{"data_b64": "/w=="}]})
        for port in (live.port, Http2Port(live.port)):
            for path in ("/v0/topics/t/scan", "/v0/topics/t/diff"):
                found: int | Reply = 0
                while isinstance(found, int):
                    before, found = found, broken(port, path, found)
                    streams += isinstance(found, int)
                    assert not isinstance(found, int) or found > before, "no further than before"
                assert before > 0
                assert (found.status, found.code) == (400, "invalid_request")
                assert "record 9001 is binary" in found.json["error"]["message"]
        api.close()
    told = [line for line in capfd.readouterr().err.splitlines() if "breaks off" in line]
    assert len(told) == streams >= 4
    assert all("/v0/topics/t/" in line and "record 9001 is binary" in line for line in told)


def full(api: Http, topic: str, count: int) -> None:
    """Records of 100 bytes."""
    body = ipc({"data": ['"' + "x" * 98 + '"'] * 10_000})
    for _ in range(count // 10_000):
        assert api("POST", f"/v0/topics/{topic}", body, {"Content-Type": ARROW}).status < 300
    api("POST", "/v0/admin/checkpoint", {})


ROWS = sized(100_000, 1_000_000, 1_000_000)


@pytest.mark.parametrize("protocol", ["hot", "plain", "h2"])
def test_a_million_rows_for_a_slow_client_are_not_held(tmp_path: Path, protocol: str) -> None:
    """The server is ahead of its client all the time; what it holds is a few batches of 2 MiB."""
    for live in running(tmp_path / "data", {"TOPICS_HOT_PROTOCOL": str(int(protocol != "plain"))}):
        api = Http(live.port)
        full(api, "t", ROWS)
        assert len(columns(api, "/v0/topics/t/diff", limit=50_000)) == 50_000
        port = Http2Port(live.port) if protocol == "h2" else live.port
        before = live.memory()[1]
        size, most, tail = 0, 0, b""
        with contextlib.closing(connection(port)) as client:
            client.request("POST", "/v0/topics/t/diff", b"{}", JSON)
            answer = client.getresponse()
            while piece := answer.read1(256 << 10):
                size += len(piece)
                tail = (tail + piece)[-8:]
                most = max(most, live.memory()[1] - before)
        api.close()
        assert (size > ROWS * 100, tail) == (True, END)
        figure(f"{protocol}: memory for {size >> 20} MiB", most / 2**20, below=32, unit="MiB")


def served(api: Http, key: dict[str, str]) -> bool:
    return api("GET", "/v0/topics/t", None, key).status == 200


@pytest.mark.parametrize("protocol", ["hot", "plain", "h2"])
def test_a_client_that_leaves_midway_gives_its_place_back(tmp_path: Path, protocol: str) -> None:
    env = {
        "TOPICS_HOT_PROTOCOL": str(int(protocol != "plain")),
        "TOPICS_API_KEYS": "k:rwa",
        "TOPICS_MAX_INFLIGHT_PER_KEY": "1",
    }
    key = {"Authorization": "Bearer k"}
    for live in running(tmp_path / "data", env):
        api = Http(live.port)
        body = ipc({"data": ['"' + "x" * 9000 + '"'] * 5000})
        assert api("POST", "/v0/topics/t", body, {"Content-Type": ARROW, **key}).status == 201
        port = Http2Port(live.port) if protocol == "h2" else live.port
        for verb in ("scan", "diff"):
            with contextlib.closing(connection(port)) as client:
                client.request("POST", f"/v0/topics/t/{verb}", b"{}", JSON | key)
                with contextlib.closing(client.getresponse()) as answer:
                    assert answer.status == 200
                    assert answer.read1(1000)
                    assert api("GET", "/v0/topics/t", None, key).code == "throttled"
            until(partial(served, api, key), DEADLINE)
        api.close()


def test_a_bad_row_refuses_all_and_is_named(api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert post(api, path, {"data": ["1"]}).status == 201
    good = ["1"] * 500
    long = '"' + "x" * 10_000 + '"'
    cases: list[tuple[dict[str, Any], str, int | str]] = [
        ({"data": [*good, "{"]}, "invalid_request", "records[500].data"),
        ({"data": [*good, None]}, "invalid_request", "records[500].data must not be null"),
        ({"data": [*good, "NaN"]}, "invalid_request", "records[500].data"),
        ({"data": [*good, long]}, "record_too_large", 500),
        ({"data": [*good, "1"], "tag": [None] * 500 + ["t" * 257]}, "record_too_large", 500),
        ({"data": [*good, "1"], "node": [None] * 500 + ["n" * 129]}, "record_too_large", 500),
        ({"data": ["1"] * 1001}, "batch_too_large", "1000"),
    ]
    for rows, code, where in cases:
        refused = post(api, path, rows)
        error = refused.json["error"]
        assert (refused.status, refused.code) == (400, code), error
        if isinstance(where, int):
            assert error["detail"]["index"] == where
        else:
            assert where in error["message"]
    maps = pa.array([[]] * 500 + [[("$k", "v")]], pa.map_(pa.string(), pa.string()))
    refused = post(api, path, {"data": [*good, "1"], "meta": maps})
    assert "records[500].meta" in refused.json["error"]["message"]
    # More than one batch of a stream is one write all the same.
    two = pa.table({"data": pa.chunked_array([["1", "2"], ["3", "{"]])})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, two.schema) as writer:
        writer.write_table(two)
    refused = api("POST", path, sink.getvalue(), {"Content-Type": ARROW})
    assert "records[3].data" in refused.json["error"]["message"]
    assert api("GET", path).json["head_seq"] == 1, "nothing of them was appended"


def test_arrow_bodies_are_writes_like_others(api: Http, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    body = ipc({"data": ["1", "2"]})
    typed = {"Content-Type": ARROW}
    first = api("POST", f"{path}?key=k&tag=all&return_seqs=true", body, typed)
    assert (first.status, first.json["seqs"]) == (201, [1, 2])
    again = api("POST", f"{path}?key=k&tag=all", body, typed).json
    assert (again["deduped"], again["first_seq"], again["head_seq"]) == (True, 1, 2)
    # What a scan answers is a body.
    columns = api("POST", f"{path}/scan", {}).body
    assert api("POST", f"{path}-copy", columns, typed).json["last_seq"] == 2
    tags = api("POST", f"{path}-copy/diff", {"include_tags": True}).json["records"]
    assert [r["$tag"] for r in tags] == ["all", "all"]
    # Limits of bodies and of topics.
    big = ipc({"data": ['"' + "x" * 9000 + '"'] * 30})
    assert api("POST", path, big, typed).code == "payload_too_large"
    assert api("PUT", f"{path}-cap", {"cap_records": 3, "discard": "reject"}).status == 201
    assert api("POST", f"{path}-cap", ipc({"data": ["1"] * 2}), typed).status == 200
    assert api("POST", f"{path}-cap", ipc({"data": ["1"] * 2}), typed).code == "topic_full"
    assert api("GET", f"{path}-cap").json["head_seq"] == 2
    assert api("GET", path).json["head_seq"] == 2


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_have_the_same_rows(api: Http, topic: str, codec: str) -> None:
    path, typed = f"/v0/topics/{topic}", {"Content-Type": ARROW}
    rows = {"data": [f'{{"n":{n},"pad":"{"x" * 50}"}}' for n in range(900)], "tag": ["t"] * 900}
    packed = compressed(rows, codec)
    assert len(packed) < len(ipc(rows)) / 4
    assert api("POST", path, packed, typed).json["last_seq"] == 900
    stage = f"/v0/txn/{topic}/stage/s?part=0&topic={topic}"
    assert api("POST", stage, packed, typed).json["staged"] == 900
    commit = {"epoch": 1, "stages": [{"id": "s", "parts": 1, "records": 900}]}
    api("POST", f"/v0/txn/{topic}/commit", commit)
    plain = api("POST", f"{path}/scan", {}).body
    whole = pa.ipc.open_stream(plain).read_all()
    assert whole["data"].to_pylist() == rows["data"] * 2
    answer = api("POST", f"{path}/scan", {"compression": codec})
    assert answer.body.endswith(END)
    assert len(answer.body) < len(plain) / 4
    assert pa.ipc.open_stream(answer.body).read_all().equals(whole)
    # What a scan answers is a body; this one is too large as it was before it was compressed.
    assert len(answer.body) < 200_000 < len(plain)
    assert api("POST", f"{path}-copy", answer.body, typed).code == "payload_too_large"
    first = api("POST", f"{path}/scan", {"compression": codec, "to_seq": 900}).body
    assert api("POST", f"{path}-copy", first, typed).json["last_seq"] == 900


def test_an_unknown_codec_is_refused(api: Http, topic: str) -> None:
    fill(api, topic, 1)
    for codec in ("gzip", "LZ4", "", 1):
        refused = api("POST", f"/v0/topics/{topic}/scan", {"compression": codec})
        assert refused.code == "invalid_request"
        assert "compression" in refused.json["error"]["message"]
    refused = api("POST", f"/v0/topics/{topic}/scan", {"compression": "snappy"})
    assert "must be one of lz4, zstd" in refused.json["error"]["message"]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_a_body_decompresses_to_is_bounded_as_a_body_is(
    api: Http, topic: str, codec: str
) -> None:
    path, typed = f"/v0/topics/{topic}", {"Content-Type": ARROW}
    stage = f"/v0/txn/{topic}/stage/s?part=0&topic={topic}"
    bomb = compressed({"data": ['"' + "x" * 9000 + '"'] * 30}, codec)
    assert len(bomb) < 10_000
    # A small body which says that it decompresses to 2⁶² bytes.
    # The last place with the length of the text is before its buffer; the offsets end with it, too.
    before, length, after = bomb.rpartition((30 * 9002).to_bytes(8, "little"))
    assert length
    liar = before + (1 << 62).to_bytes(8, "little") + after
    for body in (bomb, liar):
        for to in (path, stage):
            refused = api("POST", to, body, typed)
            assert (refused.status, refused.code) == (413, "payload_too_large")
            assert refused.json["error"]["detail"] == {"max": 200_000}
    below = before + (100_000).to_bytes(8, "little") + after
    for to in (path, stage):
        assert api("POST", to, below, typed).code == "invalid_request"
        assert api("POST", to, bomb[:-200], typed).code == "invalid_request"
    assert api("GET", path).code == "topic_not_found"
    assert api("GET", f"/v0/txn/{topic}").code == "txn_not_found"
    fits = compressed({"data": ['"' + "x" * 9000 + '"'] * 15}, codec)
    assert api("POST", path, fits, typed).json["last_seq"] == 15
