"""A client that sends exactly the given bytes, over the protocol of the port."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, NamedTuple

from .h2_client import Http2Connection, Http2Port
from .opened_clients import register
from .tls import TlsPort, secure
from .waiting import DEADLINE


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code; empty for a successful answer."""
        return "" if self.status < 400 else self.json["error"]["code"]


def connection(port: int, timeout: float = DEADLINE) -> Any:
    """A connection of the type that the port needs."""
    if isinstance(port, Http2Port):
        return Http2Connection("127.0.0.1", port, timeout)
    if isinstance(port, TlsPort):
        return register(secure(port, timeout))
    return register(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout))


class Http:
    """One keep-alive connection, to an application that is mounted below `base`."""

    def __init__(self, port: int, timeout: float = DEADLINE, base: str = "") -> None:
        self.port = port
        self.base = base
        self._connection = connection(port, timeout)

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Sends a dict or list as JSON, bytes unchanged."""
        given = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None and "Content-Type" not in given:
            given["Content-Type"] = "application/json"
        given = {name: value for name, value in given.items() if value}
        self._connection.request(method, self.base + path, body, given)
        response = self._connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        reply = Reply(response.status, headers, response.read())
        if response.will_close:
            self._connection.close()
        return reply

    def abandon(self, method: str, path: str, body: Any) -> None:
        """Sends a request and disconnects before its answer."""
        raw = json.dumps(body).encode()
        self._connection.request(method, path, raw, {"Content-Type": "application/json"})
        self.close()

    def close(self) -> None:
        self._connection.close()


def once(port: int, method: str, path: str, body: Any = None) -> Reply:
    """One request on its own connection."""
    client = Http(port)
    try:
        return client(method, path, body)
    finally:
        client.close()


def raw_exchange(port: int, *parts: bytes, timeout: float = DEADLINE) -> bytes:
    """The answer of the server to these bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        for part in parts:
            sock.sendall(part)
        received = bytearray()
        while piece := sock.recv(65536):
            received += piece
    return bytes(received)
