"""A live server on a port of its own, and a client that sends exactly what it is told."""

from __future__ import annotations

import contextlib
import copy
import http.client
import io
import json
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benches.demo.server import Server

from ..gate import GATE
from .h2_client import Http2Connection, Http2Port
from .tls import TlsPort, certificate, secure

# Small enough that a test can reach each limit.
LIMITS = {
    "TOPICS_MAX_BATCH_RECORDS": "1000",
    "TOPICS_MAX_RECORD_BYTES": "10000",
    "TOPICS_MAX_BODY_BYTES": "200000",
    "TOPICS_MAX_TOPICS": "5000",
    "TOPICS_BODY_TIMEOUT_MS": "300",
}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code; empty for an answer that is none."""
        return "" if self.status < 400 else self.json["error"]["code"]


def fresh_seed() -> int:
    """The seed that a run is given (`TOPICS_SEED`), or a new one, which it prints."""
    seed = int(os.environ.get("TOPICS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")
    return seed


def connection(port: int, timeout: float = 30) -> Any:
    """A connection of the kind that the port is for."""
    if isinstance(port, Http2Port):
        return Http2Connection("127.0.0.1", port, timeout)
    if isinstance(port, TlsPort):
        return secure(port, timeout)
    return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)


class Http:
    """One keep-alive connection."""

    def __init__(self, port: int, timeout: float = 30) -> None:
        self.port = port
        self._connection = connection(port, timeout)

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """A dict or list goes as JSON, bytes as they are."""
        given = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None and "Content-Type" not in given:
            given["Content-Type"] = "application/json"
        given = {name: value for name, value in given.items() if value}
        self._connection.request(method, path, body, given)
        response = self._connection.getresponse()
        reply = Reply(response.status, dict(response.getheaders()), response.read())
        if response.will_close:
            self._connection.close()
        return reply

    def abandon(self, method: str, path: str, body: Any) -> None:
        """Sends a request and is gone before its answer."""
        raw = json.dumps(body).encode()
        self._connection.request(method, path, raw, {"Content-Type": "application/json"})
        self.close()

    def close(self) -> None:
        self._connection.close()


def once(port: int, method: str, path: str, body: Any = None) -> Reply:
    """One request on a connection of its own."""
    client = Http(port)
    try:
        return client(method, path, body)
    finally:
        client.close()


def running(
    directory: Path, env: dict[str, str] | None = None, kind: type[Server] = Server
) -> Iterator[Server]:
    """A server on a directory, that ends well when it is told to."""
    with kind(directory, env=env) as live:
        yield live
        assert live.stop() == 0


opened = contextlib.contextmanager(running)
"""The same as a block."""


def _serve(directory: Path, *, hot: bool) -> Iterator[Server]:
    yield from running(directory, {**LIMITS, "TOPICS_HOT_PROTOCOL": str(int(hot))})


@pytest.fixture(scope="session")
def hot_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as it is by default."""
    yield from _serve(tmp_path_factory.mktemp("hot") / "data", hot=True)


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose every request goes to the application."""
    yield from _serve(tmp_path_factory.mktemp("plain") / "data", hot=False)


@pytest.fixture(scope="session")
def h2_server(hot_server: Server) -> Server:
    """The same server, to whom clients speak HTTP/2."""
    twin = copy.copy(hot_server)
    twin.port = Http2Port(twin.port)
    return twin


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of a server that has a certificate."""
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["hot", "plain"] if GATE == "quick" else ["hot", "plain", "h2"])
def door(request: pytest.FixtureRequest) -> str:
    """The ways into the application, one after the other. At the quick gate HTTP/2 is left to its
    own tests and to the conformance cases.
    """
    return str(request.param)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """A server of its own behind each door, so that all of them see the same requests."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Server] = {}
        for name in ("plain", "hot", "h2"):
            env = {**LIMITS, "TOPICS_HOT_PROTOCOL": str(int(name != "plain"))}
            # Two stages of as many rows as a request may have are more than a commit may.
            env["TOPICS_MAX_EMBEDDED_BATCH_RECORDS"] = "1500"
            directory = tmp_path_factory.mktemp(name) / "data"
            made[name] = stack.enter_context(opened(directory, env))
        made["h2"].port = Http2Port(made["h2"].port)
        yield made


@pytest.fixture
def clients(doors: dict[str, Server]) -> Iterator[dict[str, Http]]:
    made = {name: Http(server.port) for name, server in doors.items()}
    yield made
    for client in made.values():
        client.close()


# Of tests that speak HTTP/1.1 themselves.
HTTP1 = pytest.mark.parametrize("door", ["hot", "plain"], indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest, door: str) -> Server:
    """A server for all tests that do not end it; topics of a test carry its name."""
    live: Server = request.getfixturevalue(f"{door}_server")
    return live


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test starts, stops or kills."""
    live = Server(tmp_path / "data")
    yield live
    live.ensure_dead()


@pytest.fixture
def api(server: Server) -> Iterator[Http]:
    client = Http(server.port)
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"t{abs(hash(request.node.nodeid)) % 10**8}-{name}"[:100]


def raw_exchange(port: int, *parts: bytes, timeout: float = 10) -> bytes:
    """What the server answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        for part in parts:
            sock.sendall(part)
        received = bytearray()
        while piece := sock.recv(65536):
            received += piece
    return bytes(received)


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


Run = Callable[..., tuple[int, list[Any]]]


@pytest.fixture(params=["directory", "server"])
def cli(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs a command; its exit code and the JSON lines it printed."""
    if request.param == "server":
        server: Server = request.getfixturevalue("hot_server")
        where = ["--url", server.url]
    else:
        where = ["--data-dir", str(tmp_path / "data")]

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, list[Any]]:
        from topics_engine.cli import main

        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([*where, *arguments])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()]

    run.where = where  # type: ignore[attr-defined]
    return run
