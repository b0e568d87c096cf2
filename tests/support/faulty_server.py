"""A proxy that injects faults and counts connections."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Refuse:
    """Answers without forwarding the request."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error":{"code":"throttled","message":"slowly"}}'
    stalls: bool = False
    """Whether the last byte of the answer never comes."""


@dataclass(frozen=True)
class Lose:
    """Forwards the request and drops the answer."""


@dataclass(frozen=True)
class Hang:
    """Accepts the request and does nothing for these seconds, or until the proxy closes."""

    seconds: float


@dataclass(frozen=True)
class Break:
    """Closes the connection before the request is forwarded."""


@dataclass(frozen=True)
class Cut:
    """Forwards this number of bytes of the answer, then closes the connection."""

    size: int


class Faulty:
    """Listens on its own port, in front of another server."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.behind = port
        self.faults: deque[Any] = deque()
        """What becomes of the next requests that `matching` is in the method and path of."""
        self.matching = ""
        self.always: Any = None
        """What becomes of every request; nothing of them is recorded."""
        self._streams: set[socket.socket] = set()
        self._closing = threading.Event()
        self.requests: list[tuple[str, str, float]] = []
        self.keys: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.connections: Counter[str] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections["opened"] += 1
                self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

            def do(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                outer.answer(self, self.rfile.read(length) if length else None)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        if tls is not None:
            self.url = f"https://localhost:{port}"
            # The connection's thread performs the handshake, at its first read.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def fail(self, *faults: Any, matching: str = "") -> None:
        """Makes the next requests fail, one fault each; earlier records are cleared."""
        self.matching = matching
        self.requests.clear()
        self.headers.clear()
        self.faults.extend(faults)

    def answer(self, to: BaseHTTPRequestHandler, body: bytes | None) -> None:
        fault = self.always
        if fault is None and self.matching in f"{to.command} {to.path}":
            # Faults that are added after the request was recorded apply to later ones.
            fault = self.faults.popleft() if self.faults else None
            self.headers.append(dict(to.headers))
            self.requests.append((to.command, to.path, time.monotonic()))
        if isinstance(fault, Refuse):
            to.send_response(fault.status)
            for name, value in fault.headers.items():
                to.send_header(name, value)
            to.send_header("Content-Length", str(len(fault.body) + fault.stalls))
            to.end_headers()
            to.wfile.write(fault.body)
            if fault.stalls:
                self._closing.wait()
                self._end(to)
            return
        if isinstance(fault, Hang):
            self._closing.wait(fault.seconds)
        if isinstance(fault, Hang | Break):
            self._end(to)
            return
        cut = fault.size if isinstance(fault, Cut) else None
        self._pass_on(to, body, lose=isinstance(fault, Lose), cut=cut)

    def _pass_on(
        self, to: BaseHTTPRequestHandler, body: bytes | None, *, lose: bool, cut: int | None
    ) -> None:
        behind = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=90)
        try:
            headers = {k: v for k, v in to.headers.items() if k.lower() != "host"}
            behind.request(to.command, to.path, body, headers)
            response = behind.getresponse()
            if response.getheader("Content-Type", "").startswith("text/event-stream"):
                if lose:
                    response.read1(65536)
                    response.read1(65536)
                    response.close()
                    self._end(to)
                else:
                    self._stream(to, response, behind)
                return
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self._end(to)
            return
        finally:
            behind.close()
        if lose:
            self._end(to)
            return
        to.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() in ("content-type", "retry-after"):
                to.send_header(name, value)
        to.send_header("Content-Length", str(len(answer)))
        to.end_headers()
        to.wfile.write(answer[:cut])
        if cut is not None:
            self._end(to)

    def _stream(
        self,
        to: BaseHTTPRequestHandler,
        response: http.client.HTTPResponse,
        behind: http.client.HTTPConnection,
    ) -> None:
        to.send_response(200)
        to.send_header("Content-Type", "text/event-stream")
        to.send_header("Connection", "close")
        to.end_headers()
        self.connections["streams"] += 1
        self._streams.add(to.connection)
        try:
            while piece := response.read1(65536):
                if self.faults and isinstance(self.faults[0], Hang):
                    # No more bytes are forwarded, and the connection stays open.
                    self._closing.wait(self.faults.popleft().seconds)
                    return
                to.wfile.write(piece)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            self._streams.discard(to.connection)
            response.close()
            behind.close()
            self._end(to)

    def break_streams(self) -> None:
        """Closes every current stream."""
        for connection in list(self._streams):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _end(to: BaseHTTPRequestHandler) -> None:
        to.close_connection = True
        with contextlib.suppress(OSError):
            to.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def in_front_of(port: int, tls: ssl.SSLContext | None = None) -> Iterator[Faulty]:
    faulty = Faulty(port, tls)
    try:
        yield faulty
    finally:
        faulty.close()
