"""An HTTP/2 client with prior knowledge, with the calls of `http.client` that tests use."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from http.client import RemoteDisconnected
from typing import Any

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from .opened_clients import register
from .tls import TlsPort, trust
from .waiting import DEADLINE


class Http2Port(int):
    """A port whose clients start with HTTP/2."""


class StreamReset(ConnectionError):
    """The server has reset a stream."""

    def __init__(self, code: int) -> None:
        super().__init__(f"reset with {code}")
        self.code = code


class Connection(H2Connection):
    """A connection whose streams go on after a GOAWAY, as RFC 9113 (6.8) says. h2 takes it for the
    end of the connection, and refuses frames that come after it.
    """

    def _receive_goaway_frame(self, frame: Any) -> Any:
        state = self.state_machine.state
        received = super()._receive_goaway_frame(frame)
        self.state_machine.state = state
        return received


class Response:
    """One answer, read as a whole or line by line."""

    will_close = False

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.status = 0
        self.headers: dict[str, str] = {}
        self.informational: list[int] = []
        self.buffer = bytearray()
        # Window bytes that were not returned yet.
        self.held = 0
        self.ended = False
        self.reset: int | None = None

    def getheaders(self) -> list[tuple[str, str]]:
        return list(self.headers.items())

    def wait(self, done: Callable[[], Any]) -> None:
        """Receives until a condition is true; a reset stream raises an error."""
        while not done():
            if self.reset is not None:
                raise StreamReset(self.reset)
            if self.ended:
                return
            self._connection.receive()

    def take(self) -> bytes:
        """The bytes received so far."""
        return self._take(len(self.buffer))

    def _take(self, size: int) -> bytes:
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        self._connection.acknowledge(self)
        return taken

    def read(self) -> bytes:
        whole = bytearray()
        while True:
            self.wait(lambda: self.buffer)
            whole += self.take()
            if self.ended and not self.buffer:
                return bytes(whole)

    def read1(self, size: int) -> bytes:
        """The bytes received so far, or the next ones; empty at the end."""
        self.wait(lambda: self.buffer)
        return self._take(size)

    def readline(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            # A line may be longer than the window.
            self.wait(lambda: self.buffer)
            if not self.buffer:
                break
            line += self._take(self.buffer.find(b"\n") + 1 or len(self.buffer))
        return bytes(line)

    def close(self) -> None:
        """Cancels the stream, unless it has ended."""
        if not self.ended and self.reset is None:
            self._connection.cancel(self.id)


class Http2Connection:
    """One connection. `request` and `getresponse` are one exchange; `start` starts several."""

    def __init__(
        self, host: str, port: int, timeout: float = DEADLINE, tls: ssl.SSLContext | None = None
    ) -> None:
        self._address = (host, int(port))
        self._timeout = timeout
        self._tls = trust("h2") if tls is None and isinstance(port, TlsPort) else tls
        self.sock: socket.socket | None = None
        self.responses: dict[int, Response] = {}
        self.goodbye: events.ConnectionTerminated | None = None
        self._last: Response | None = None
        register(self)

    def connect(self) -> None:
        self.sock = socket.create_connection(self._address, timeout=self._timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._address[0])
        self.h2 = Connection(H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.goodbye = None
        self.flush()

    def flush(self) -> None:
        assert self.sock is not None
        if data := self.h2.data_to_send():
            self.sock.sendall(data)

    def head(self, method: str, path: str, headers: Iterable[tuple[str, str]]) -> list[Any]:
        host, port = self._address
        given = [(name.lower(), value.strip()) for name, value in headers]
        authority = next((v for n, v in given if n == "host"), f"{host}:{port}")
        return [
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", authority),
            *((n, v) for n, v in given if n not in ("host", "connection")),
        ]

    def start(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        end: bool = True,
    ) -> Response:
        """Sends a request without waiting for its answer."""
        if self.sock is None or self.goodbye is not None:
            self.close()
            self.connect()
        given = list((headers or {}).items())
        if body is not None:
            given.append(("content-length", str(len(body))))
        stream_id = self.h2.get_next_available_stream_id()
        response = self.responses[stream_id] = Response(self, stream_id)
        self.h2.send_headers(stream_id, self.head(method, path, given), end and not body)
        if body:
            self.send(response, body, end)
        self.flush()
        return response

    def at_once(
        self, count: int, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> list[Response]:
        """Sends this number of requests in one write."""
        if self.sock is None:
            self.connect()
        made = []
        for _ in range(count):
            stream_id = self.h2.get_next_available_stream_id()
            made.append(Response(self, stream_id))
            self.responses[stream_id] = made[-1]
            self.h2.send_headers(stream_id, self.head(method, path, headers.items()))
            self.h2.send_data(stream_id, body, end_stream=True)
        self.flush()
        return made

    def send(self, response: Response, body: bytes, end: bool = True) -> None:
        """Sends a body as the windows allow; stops when the server has sent its whole answer."""
        left = memoryview(body)
        while left or end:
            if response.ended or response.reset is not None:
                return
            try:
                room = self.h2.local_flow_control_window(response.id)
            except ProtocolError:
                return
            size = min(len(left), room, self.h2.max_outbound_frame_size)
            if left and not size:
                self.receive()
                continue
            piece, left = left[:size], left[size:]
            self.h2.send_data(response.id, bytes(piece), end and not left)
            self.flush()
            if not left:
                return

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        try:
            self._last = self.start(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError, RemoteDisconnected):
            # The server has closed an idle connection.
            self.close()
            self._last = self.start(method, path, body, headers)

    def getresponse(self) -> Response:
        assert self._last is not None
        self._last.wait(lambda last=self._last: last.status)
        return self._last

    def receive(self) -> None:
        """Receives the next bytes from the server."""
        assert self.sock is not None
        data = self.sock.recv(65536)
        if not data:
            raise RemoteDisconnected("the server closed the connection")
        for event in self.h2.receive_data(data):
            self._happened(event)
        self.flush()

    def _happened(self, event: Any) -> None:
        if isinstance(event, events.ConnectionTerminated):
            self.goodbye = event
            return
        response = self.responses.get(getattr(event, "stream_id", None) or 0)
        if response is None:
            return
        if isinstance(event, events.InformationalResponseReceived):
            response.informational.append(int(dict(event.headers)[b":status"]))
        elif isinstance(event, events.ResponseReceived):
            found = {n.decode(): v.decode("latin-1") for n, v in event.headers}
            response.status = int(found.pop(":status"))
            response.headers = found
        elif isinstance(event, events.DataReceived):
            response.buffer += event.data
            response.held += event.flow_controlled_length
        elif isinstance(event, events.StreamEnded):
            response.ended = True
            self.responses.pop(response.id, None)
        elif isinstance(event, events.StreamReset) and not response.ended:
            response.reset = int(event.error_code)
            self.responses.pop(response.id, None)

    def acknowledge(self, response: Response) -> None:
        """Returns window bytes to the server for bytes that were read."""
        held = response.held - len(response.buffer)
        if held > 0 and self.sock is not None:
            response.held -= held
            self.h2.acknowledge_received_data(held, response.id)
            with contextlib.suppress(OSError):
                self.flush()

    def cancel(self, stream_id: int) -> None:
        self.responses.pop(stream_id, None)
        if self.sock is not None:
            with contextlib.suppress(OSError, ProtocolError):
                self.h2.reset_stream(stream_id, 8)
                self.flush()

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        self.responses.clear()
