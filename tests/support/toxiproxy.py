"""toxiproxy: a proxy that delays, throttles, cuts and swallows connections.

It is built on demand, see `.ci/go-tool`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

from .gateway import go_tool
from .ports import free_port
from .waiting import until


class Toxiproxy:
    """A proxy in front of a port of this machine, until the end of the block."""

    def __init__(self, behind: int) -> None:
        binary = go_tool("toxiproxy")
        self._api = free_port()
        self.port = free_port()
        self._process = subprocess.Popen(
            [binary, "-host", "127.0.0.1", "-port", str(self._api)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: _listens(self._api), 30)
        listen, upstream = f"127.0.0.1:{self.port}", f"127.0.0.1:{behind}"
        self._ask("POST", "/proxies", name="proxy", listen=listen, upstream=upstream, enabled=True)

    def _ask(self, method: str, path: str, **body: Any) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._api}{path}",
            json.dumps(body).encode() if body else None,
            method=method,
        )
        urllib.request.urlopen(request, timeout=10).close()

    @contextlib.contextmanager
    def toxic(
        self, kind: str, *, stream: str = "downstream", toxicity: float = 1.0, **attributes: int
    ) -> Iterator[None]:
        """Connections have this toxic in the block: `timeout` (0: a black hole), `limit_data`,
        `reset_peer`, `latency`, `bandwidth`.
        """
        name = f"{kind}-{stream}"
        self._ask(
            "POST",
            "/proxies/proxy/toxics",
            name=name,
            type=kind,
            stream=stream,
            toxicity=toxicity,
            attributes=attributes,
        )
        try:
            yield
        finally:
            self._ask("DELETE", f"/proxies/proxy/toxics/{name}")

    def __enter__(self) -> Toxiproxy:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
