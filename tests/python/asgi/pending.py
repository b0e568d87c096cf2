"""Requests that wait at a server while the test goes on."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from support.http_client import Http, Reply, connection

MOST_WAIT_MS = 30_000
"""The longest wait that a request may ask for."""
DEADLINE = 120
"""Seconds after which a missing answer is a failure."""


class Pending:
    """A request that was sent, and whose answer was not read yet."""

    def __init__(
        self, port: int, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        self._connection = connection(port, DEADLINE)
        sent = {"Content-Type": "application/json", **(headers or {})}
        self._connection.request("POST", path, json.dumps(body).encode(), sent)

    def reply(self) -> Reply:
        with (
            contextlib.closing(self._connection),
            contextlib.closing(self._connection.getresponse()) as response,
        ):
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())


def until_read(api: Http) -> None:
    """Returns when the server has read what other connections have sent before this call: its one
    event loop serves all connections that are ready, and has since served this one several times.
    """
    for _ in range(5):
        assert api("GET", "/healthz").status == 200
