"""A proxy in front of the server that breaks selected requests."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

What = Literal["refuse", "forget", "cut", "unmark", "busy", "unavailable", "hang up"]
"""Closes without forwarding; forwards and closes; sends half of the answer; sends all of it
except the last marker of an Arrow stream; answers 503 as the server does; answers 503 itself;
sends the answer and closes."""


class Proxy:
    """Forwards every request; `break_next` selects requests to break."""

    def __init__(self, port: int) -> None:
        self.seen: list[str] = []
        """The requested paths."""
        self.bodies: list[bytes] = []
        self.bytes = Counter[str]()
        """The bytes of the bodies of requests and answers, by the path without its query."""
        self._orders: list[tuple[str, What, int]] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self, "upstream": port})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def break_next(self, path: str, what: What, times: int = 1) -> None:
        """Breaks the next requests whose path contains `path`."""
        with self._lock:
            self._orders.append((path, what, times))

    def order(self, path: str) -> What | None:
        with self._lock:
            self.seen.append(path)
            for i, (part, what, times) in enumerate(self._orders):
                if part in path:
                    self._orders[i] = (part, what, times - 1)
                    if times == 1:
                        del self._orders[i]
                    return what
        return None

    def count(self, path: str, size: int) -> None:
        with self._lock:
            self.bytes[path.partition("?")[0]] += size

    def transferred(self, part: str) -> int:
        """The bytes on all paths that contain `part`."""
        return sum(size for path, size in self.bytes.items() if part in path)

    def heal(self) -> None:
        with self._lock:
            self._orders.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy
    upstream: int

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.bodies.append(body)
        what = self.proxy.order(self.path)
        if what == "refuse":
            self.close_connection = True
            return
        if what == "busy":
            answer = b'{"error":{"code":"throttled","message":"busy"}}'
            self._answer(503, {"Retry-After": "0"}, answer)
            return
        if what == "unavailable":
            self._answer(503, {"Content-Type": "text/html"}, b"<h1>No server is available</h1>")
            return
        status, headers, answer = self._ask(body)
        self.proxy.count(self.path, len(body) + len(answer))
        if what == "forget":
            self.close_connection = True
        elif what == "cut":
            self.close_connection = True
            self._answer(status, headers, answer, sent=len(answer) // 2)
        elif what == "unmark":
            self._answer(status, headers, answer[:-8])
        else:
            self.close_connection = what == "hang up"
            self._answer(status, headers, answer)

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        wanted = ("content-type", "accept")
        headers = {k: v for k, v in self.headers.items() if k.lower() in wanted}
        connection.request(self.command, self.path, body or None, headers)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, {"Content-Type": response.getheader("Content-Type") or ""}, answer

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, sent: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if sent is None else body[:sent])

    do_GET: Callable[[Any], None] = _forward  # noqa: N815
    do_POST: Callable[[Any], None] = _forward  # noqa: N815
    do_PUT: Callable[[Any], None] = _forward  # noqa: N815
    do_DELETE: Callable[[Any], None] = _forward  # noqa: N815
