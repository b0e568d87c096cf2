"""A client of the WebSocket."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import ClientConnection, connect

from .opened_clients import register
from .waiting import DEADLINE


class Socket:
    """A connection; `ask` sends a message and waits for its answer."""

    def __init__(self, port: int, query: str = "", **kwargs: Any) -> None:
        self._open = connect(f"ws://127.0.0.1:{port}/v0/ws{query}", **kwargs)
        self.connection: ClientConnection = self._open.__enter__()
        # Its thread keeps it open when nobody refers to this object any more.
        register(self.connection)

    def close(self) -> None:
        self._open.__exit__(None, None, None)

    def send(self, message: dict[str, Any] | str) -> None:
        self.connection.send(message if isinstance(message, str) else json.dumps(message))

    def take(self, op: str = "", timeout: float = DEADLINE) -> Any:
        """The next message, or the next of a kind."""
        while True:
            message = json.loads(self.connection.recv(timeout))
            if not op or message["op"] == op:
                return message

    def ask(self, op: str, answer: str, **fields: Any) -> Any:
        self.send({"op": op, "request_id": f"r-{op}", **fields})
        got = self.take(answer)
        assert got["request_id"] == f"r-{op}"
        return got

    def refused(self, message: dict[str, Any] | str) -> Any:
        self.send(message)
        got = self.take("error")
        assert got["message"]
        return got["code"]
