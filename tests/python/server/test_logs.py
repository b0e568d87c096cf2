"""The server's log: its format, the ids of requests, and the audit log."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from support.h2_client import Http2Port
from support.http_client import Http
from support.server import Server
from support.waiting import DEADLINE, until
from support.websocket import Socket

from .test_supervised import ended_process

KEYS = "root-key,reader-key:r:orders"
ROOT = {"Authorization": "Bearer root-key"}
READER = {"Authorization": "Bearer reader-key"}


def label(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def audited(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("method", "path", "status", "key", "request_id"))


def test_administrative_requests_and_refused_keys_are_audited(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    env = {"TOPICS_API_KEYS": KEYS, "TOPICS_LOG_FORMAT": "json", "TOPICS_AUDIT_LOG": str(file)}
    with Server(tmp_path / "data", env=env) as server:
        api = Http(server.port)
        one = {"records": [{"data": 1}]}
        assert api("PUT", "/v0/topics/orders", {}, ROOT | {"X-Request-Id": "r-1"}).status == 201
        assert api("POST", "/v0/topics/orders", one, ROOT).status == 200
        assert api("GET", "/v0/topics/orders", None, READER).status == 200
        assert api("POST", "/v0/topics/orders", one, READER).status == 403
        assert api("GET", "/v0/topics", None, {"Authorization": "Bearer wrong-key"}).status == 401
        assert api("GET", "/v0/topics/jobs?touch=false", None, READER).status == 403
        assert api("DELETE", "/v0/topics/orders", None, ROOT).status == 200
        assert api("PUT", "/v0/topics/a%20b", {}, ROOT).status == 400
        with pytest.raises(InvalidStatus):
            Socket(server.port, additional_headers={"Authorization": "Bearer wrong-key"})
        api.close()
        until(lambda: len(lines(file)) >= 7)
        assert server.stop() == 0
    root, reader = label("root-key"), label("reader-key")
    assert [audited(line) for line in lines(file)] == [
        ("PUT", "/v0/topics/orders", 201, root, "r-1"),
        ("POST", "/v0/topics/orders", 403, reader, ""),
        ("GET", "/v0/topics", 401, "", ""),
        ("GET", "/v0/topics/jobs", 403, reader, ""),
        ("DELETE", "/v0/topics/orders", 200, root, ""),
        ("PUT", "/v0/topics/a b", 400, root, ""),
        ("GET", "/v0/ws", 401, "", ""),
    ]
    assert lines(file)[0]["client"] == "127.0.0.1"
    text = file.read_text()
    assert not any(key in text for key in ("root-key", "reader-key", "wrong-key"))


def served(tmp_path: Path, file: Path, **env: str) -> Server:
    """A server with keys that writes its audit log as JSON into a file."""
    keys = {"TOPICS_API_KEYS": KEYS + ",mine-key::mine.,writer-key:w", "TOPICS_LOG_FORMAT": "json"}
    return Server(tmp_path / "data", env={**keys, "TOPICS_AUDIT_LOG": str(file), **env})


@pytest.mark.parametrize("hot", ["0", "1"])
def test_names_that_a_key_does_not_cover_are_audited(tmp_path: Path, hot: str) -> None:
    file = tmp_path / "audit.jsonl"
    mine = {"Authorization": "Bearer mine-key", "X-Request-Id": "r-1"}
    writer = {"Authorization": "Bearer writer-key"}
    one: dict[str, Any] = {"records": [{"data": 1}]}
    refused: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("/v0/topics/orders", one, mine),
        ("/v0/topics/orders/diff", {"from_seq": 0}, mine),
        ("/v0/topics/orders/claim", {"node": "n"}, mine),
        ("/v0/topics/orders/ack", {"node": "n", "seqs": [1]}, mine),
        ("/v0/topics/orders/nack", {"node": "n", "seqs": [1]}, mine),
        ("/v0/topics/orders/extend", {"node": "n", "seqs": [1]}, mine),
        # Only an administrator may write with a config.
        ("/v0/topics/orders", {**one, "config": {"ttl_ms": 5}}, writer),
    ]
    with served(tmp_path, file, TOPICS_HOT_PROTOCOL=hot) as server:
        api = Http(server.port)
        for path, body, headers in refused:
            assert api("POST", path, body, headers).status == 403
            # What is allowed is no matter of the audit log.
            assert api("POST", "/v0/topics/mine.a", one, mine).status in (200, 201)
        api.close()
        until(lambda: len(lines(file)) >= len(refused))
        assert server.stop() == 0
    assert [audited(line) for line in lines(file)] == [
        ("POST", path, 403, label(key.split()[1]), headers.get("X-Request-Id", ""))
        for path, _, headers in refused
        for key in [headers["Authorization"]]
    ]
    assert {line["client"] for line in lines(file)} == {"127.0.0.1"}
    assert all(line["verb"] for line in lines(file))


def test_refused_messages_of_a_socket_are_audited(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    one = {"records": [{"data": 1}]}
    with served(tmp_path, file) as server:
        for key, messages in (
            ("mine-key", [("publish", {"topic": "orders", **one}), ("subscribe", {"topic": "o"})]),
            ("reader-key", [("publish", {"topic": "orders", **one})]),
        ):
            socket = Socket(server.port, additional_headers={"Authorization": f"Bearer {key}"})
            for op, fields in messages:
                assert socket.ask(op, "error", **fields)["code"] == "forbidden"
            # An answer with the same words in the client's own text is not a refusal.
            socket.send({"op": "ping", "request_id": '"code":"forbidden"'})
            assert socket.take()["op"] == "pong"
            socket.close()
        until(lambda: len(lines(file)) >= 3)
        assert server.stop() == 0
    mine, reader = label("mine-key"), label("reader-key")
    found = [(line["method"], line["path"], line["status"], line["key"]) for line in lines(file)]
    assert found == [("MESSAGE", "/v0/ws", 403, key) for key in (mine, mine, reader)]
    reasons = [line["reason"] for line in lines(file)]
    assert '"orders"' in reasons[0]
    assert '"o"' in reasons[1]
    assert "`write`" in reasons[2]
    assert all(line["message"].endswith(line["reason"]) for line in lines(file))


def test_every_refusal_without_a_key_is_recorded_or_counted(tmp_path: Path) -> None:
    file, requests = tmp_path / "audit.jsonl", 130
    with served(tmp_path, file) as server:
        api = Http(server.port)
        for _ in range(requests):
            assert api("GET", "/v0/topics").status == 401
        api.close()
        assert server.stop() == 0
    assert sum(line.get("suppressed", 1) for line in lines(file)) == requests
    assert len(lines(file)) < requests


@pytest.mark.parametrize(("proxies", "client"), [("", "127.0.0.1"), ("127.0.0.1", "7.7.7.7")])
def test_only_a_trusted_proxy_names_the_client(tmp_path: Path, proxies: str, client: str) -> None:
    file = tmp_path / "audit.jsonl"
    with served(tmp_path, file, TOPICS_TRUSTED_PROXIES=proxies) as server:
        headers = {"X-Forwarded-For": "6.6.6.6, 7.7.7.7", "Authorization": "Bearer wrong-key"}
        for port in (server.port, Http2Port(server.port)):
            api = Http(port)
            assert api("GET", "/v0/topics", None, headers).status == 401
            api.close()
        with pytest.raises(InvalidStatus):
            Socket(server.port, additional_headers=headers)
        until(lambda: len(lines(file)) >= 3)
        assert server.stop() == 0
    assert [line["client"] for line in lines(file)] == [client] * 3


def test_only_the_owner_may_read_the_audit_log(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with served(tmp_path, file) as server:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.rename(tmp_path / "moved")
        api = Http(server.port)
        assert api("PUT", "/v0/topics/a", {}, ROOT).status == 201
        api.close()
        until(lambda: len(lines(file)) == 1)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert server.stop() == 0


def test_a_moved_audit_log_is_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    with Server(tmp_path / "data", env={"TOPICS_AUDIT_LOG": str(file)}) as server:
        api = Http(server.port)
        assert api("PUT", "/v0/topics/a", {}).status == 201
        until(lambda: file.exists() and "'/v0/topics/a': 201" in file.read_text())
        file.rename(tmp_path / "audit.log.1")
        assert api("PUT", "/v0/topics/b", {}).status == 201
        until(lambda: file.exists() and "'/v0/topics/b': 201" in file.read_text())
        api.close()
        assert server.stop() == 0


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_log_has_the_id_of_the_request(tmp_path: Path, format: str) -> None:
    command = [sys.executable, "-m", "topics_engine.cli", "serve", "--port", "0"]
    env = {"TOPICS_LOG_FORMAT": format, "TOPICS_AUDIT_LOG": "-", "PATH": "/usr/bin:/bin"}
    with ended_process(
        [*command, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[2].rsplit(":", 1)[1])
        api = Http(port)
        until(lambda: api("GET", "/readyz").status == 200)
        assert api("PUT", "/v0/topics/a", {}, {"X-Request-Id": "trace/7"}).status == 201
        assert api("PUT", "/v0/topics/b", {}).status == 201
        api.close()
        process.terminate()
        told = process.communicate(timeout=DEADLINE)[1].splitlines()
    first, second = told
    if format == "json":
        parsed = json.loads(first)
        assert parsed["request_id"] == "trace/7"
        assert (parsed["level"], parsed["logger"]) == ("info", "topics_engine.audit")
        assert parsed["message"].startswith("done PUT '/v0/topics/a': 201")
        assert parsed["time"].endswith("+00:00")
        assert json.loads(second)["request_id"] == ""
    else:
        assert first.endswith("[request trace/7]")
        assert "[request" not in second


def test_an_id_is_repeated_by_every_protocol(clients: dict[str, Http], topic: str) -> None:
    one = {"records": [{"data": 1}]}
    for protocol, api in clients.items():
        for method, path, body in (
            ("POST", f"/v0/topics/{topic}", one),
            ("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0}),
            ("POST", f"/v0/topics/{topic}/diff", {"from_seq": "no"}),
            ("GET", f"/v0/topics/{topic}", None),
            ("GET", "/no/such/path", None),
        ):
            for given, repeated in (
                ("abc-123", "abc-123"),
                ("x" * 128, "x" * 128),
                ("x" * 129, None),
                ("a b", None),
                ('a"b', None),
                (None, None),
            ):
                headers = {"X-Request-Id": given} if given else {}
                reply = api(method, path, body, headers)
                found = reply.headers.get("x-request-id")
                assert found == repeated, (protocol, method, path, given)


def test_a_format_that_there_is_not_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "topics_engine.cli", "serve", "--data-dir", str(tmp_path)]
    env = {"TOPICS_LOG_FORMAT": "xml", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=DEADLINE)
    assert done.returncode == 2
    assert "'xml' is not one of text, json" in done.stderr
