"""HTTP/2 on a connection whose client starts with it (prior knowledge, or ALPN).

`h2` parses and makes the frames without I/O; this module connects it to a transport and the
application. What a client can make the server keep is bounded: unread bodies by the flow-control
windows, responses by `MAX_UNSENT`, requests by `Limits.streams`, and frames without effect by
`CONTROL_FRAME_BUDGET`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from h2 import events
from h2.config import H2Configuration
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from ..asgi.messages import MAX_HEADER_BYTES, Header
from .http2_connection import BoundedConnection
from .http2_stream import Stream, fill_scope, refuse
from .limits import Limits, WriteTimeout

STREAM_WINDOW = 256 << 10
CONNECTION_WINDOW = 1 << 20
MAX_UNSENT = 16 << 20
"""Unsent bytes of a connection above which no further request starts."""
CONTROL_FRAME_BUDGET = 2000
"""Frames without effect that a client may send, beyond the allowance for time and responses."""
CONTROL_FRAMES_PER_SECOND = 100
RESET = 10
"""What a cancelled request counts for."""
SLICE = 8 << 10
"""Received bytes between two checks of the budget."""

_USEFUL_EVENTS = (events.DataReceived, events.RequestReceived, events.TrailersReceived)


class Http2Protocol(asyncio.Protocol):
    """An `asyncio.Protocol` that uvicorn counts among its connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
    ) -> None:
        self.loop = loop
        self.stall = limits.stall
        self._limits = limits
        self._config = config
        self._state = server_state
        self._app_state = app_state
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._write_timeout: WriteTimeout = None  # type: ignore[assignment]
        self._h2 = BoundedConnection(H2Configuration(client_side=False))
        self._streams: dict[int, Stream] = {}
        self._writable = True
        # Received data is ignored.
        self._closed = False
        # New requests are refused; open ones are answered.
        self._leaving = False
        self._unsent = 0
        self._sent = asyncio.Event()
        self._control_frames = 0.0
        self._control_frames_at = loop.time()
        self._idle: asyncio.TimerHandle | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.RequestReceived: self._request,
            events.DataReceived: self._data,
            events.StreamEnded: self._end,
            events.StreamReset: self._reset,
            events.WindowUpdated: self._window,
            events.RemoteSettingsChanged: self._settings_changed,
            events.ConnectionTerminated: self._terminated,
        }

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._write_timeout = WriteTimeout(
            self.loop, transport, self._limits.stall, unsent=self._limits.unsent
        )
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._h2.local_settings = _settings(self._limits.streams)
        self._h2.initiate_connection()
        # A client that has not seen the limit yet loses a stream, not the connection.
        self._h2.local_settings = _settings(2**31 - 1)
        self._h2.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        self._flush()
        self._await_request(self._limits.header)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._state.connections.discard(self)
        self._write_timeout.connection_lost()
        self._request_is_here()
        self._sent.set()
        for stream in list(self._streams.values()):
            stream.leave()
        if exc is None:
            self._transport.close()

    def eof_received(self) -> None:
        pass

    def pause_writing(self) -> None:
        # Responses to control frames would pile up for a client that only sends.
        self._writable = False
        self._write_timeout.pause_writing()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable = True
        self._write_timeout.resume_writing()
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._wake()

    def shutdown(self) -> None:
        """Accepts no more requests, and closes after the last response."""
        if self._closed:
            return
        self._leaving = True
        self._h2.close_connection(ErrorCodes.NO_ERROR)
        self._stay_open()
        self._flush()
        if not self._streams:
            self._close()

    def _stay_open(self) -> None:
        # After a GOAWAY, `h2` treats the connection as closed. By the protocol, its open streams
        # go on.
        self._h2.state_machine.state = ConnectionState.SERVER_OPEN

    def _close(self) -> None:
        self._closed = True
        self._request_is_here()
        self._transport.close()
        self._write_timeout.transport_closing()

    def _abort(self, code: ErrorCodes) -> None:
        """Ends the connection with all its streams."""
        self._h2.close_connection(code)
        self._flush()
        self._close()
        for stream in list(self._streams.values()):
            stream.leave()

    def _await_request(self, seconds: float) -> None:
        self._request_is_here()
        self._idle = self.loop.call_later(seconds, self._too_slow)

    def _request_is_here(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _too_slow(self) -> None:
        if not self._closed:
            self._abort(ErrorCodes.NO_ERROR)

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    # Received frames.

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), SLICE):
            if self._closed:
                return
            try:
                happened = self._h2.receive_data(data[at : at + SLICE])
            except ProtocolError:
                # `h2` has queued the GOAWAY that reports it.
                self._flush()
                self._close()
                for stream in list(self._streams.values()):
                    stream.leave()
                return
            self._control_frames += self._h2.take_control_frames()
            for event in happened:
                if isinstance(event, _USEFUL_EVENTS):
                    self._control_frames -= 1
                handler = self._handlers.get(type(event))
                if handler is not None:
                    handler(event)
            if self._control_frames > CONTROL_FRAME_BUDGET and self._is_over_budget():
                self._abort(ErrorCodes.ENHANCE_YOUR_CALM)
                return
        self._flush()

    def _is_over_budget(self) -> bool:
        now = self.loop.time()
        excused = (now - self._control_frames_at) * CONTROL_FRAMES_PER_SECOND
        self._control_frames, self._control_frames_at = (
            max(0.0, self._control_frames - excused),
            now,
        )
        return self._control_frames > CONTROL_FRAME_BUDGET

    def _request(self, event: events.RequestReceived) -> None:
        stream_id = event.stream_id
        if self._leaving or len(self._streams) >= self._limits.streams:
            self._control_frames += RESET
            self.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": "2",
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "scheme": "https" if is_ssl(self._transport) else "http",
            "root_path": self._config.root_path,
            "state": self._app_state.copy(),
        }
        wrong = fill_scope(scope, event.headers, empty=event.stream_ended is not None)
        app: Any = refuse(wrong) if wrong is not None else self._config.loaded_app
        stream = self._streams[stream_id] = Stream(self, stream_id, scope, app)
        self._request_is_here()
        task = self.loop.create_task(stream.run())
        task.add_done_callback(self._state.tasks.discard)
        self._state.tasks.add(task)

    def _data(self, event: events.DataReceived) -> None:
        stream, size = self._streams.get(event.stream_id), event.flow_controlled_length
        if stream is None or stream.gone or stream.complete:
            self.acknowledge(event.stream_id, size)
            return
        if not event.data and event.stream_ended is None:
            self._control_frames += 1
        stream.receive_data(event.data, size)

    def _end(self, event: events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.receive_end()

    def _reset(self, event: events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            # The application may still run; the stream counts until it returns.
            self._control_frames += RESET
            stream.leave()

    def _window(self, event: events.WindowUpdated) -> None:
        if not event.stream_id:
            self._wake()
        elif event.stream_id in self._streams:
            self._streams[event.stream_id].wake()

    def _settings_changed(self, event: events.RemoteSettingsChanged) -> None:
        self._h2.bound_settings(event.changed_settings)
        self._wake()

    def _wake(self) -> None:
        for stream in self._streams.values():
            stream.wake()

    def _terminated(self, _: events.ConnectionTerminated) -> None:
        self._stay_open()
        self._leaving = True
        if not self._streams:
            self._close()

    # The interface of the streams.

    @property
    def default_headers(self) -> list[Header]:
        """The headers of every response."""
        return self._state.default_headers

    async def wait_for_capacity(self) -> None:
        """Waits until the unsent bytes of other responses are below `MAX_UNSENT`."""
        while self._unsent > MAX_UNSENT and not self._closed:
            self._sent.clear()
            await self._sent.wait()

    def set_stall_factor(self, times: float) -> None:
        """Sets the stall timeout, as a multiple of the default."""
        self._write_timeout.set_stall_factor(times)

    def add_unsent(self, size: int) -> None:
        """Counts bytes of a response that wait to be sent; negative when they were sent."""
        self._unsent += size
        if size < 0 and self._unsent <= MAX_UNSENT:
            self._sent.set()

    def send_window(self, stream_id: int) -> int:
        """Bytes that may be sent now."""
        if not self._writable or self._closed:
            return 0
        return max(0, self._h2.local_flow_control_window(stream_id))

    def begin(self, stream_id: int, headers: list[Header]) -> None:
        """Queues the head of a response, which goes out with the next data."""
        if not self._closed:
            self._h2.send_headers(stream_id, headers)

    def informational(self, stream_id: int) -> None:
        """Sends 100 Continue."""
        if not self._closed:
            self._h2.send_headers(stream_id, [(b":status", b"100")])
            self._flush()

    def data(self, stream_id: int, data: bytes, last: bool) -> None:
        """Sends a piece of a response that fits into the window."""
        if self._closed:
            return
        size = self._h2.max_outbound_frame_size
        pieces = range(0, len(data), size) if data else (0,)
        for at in pieces:
            ends = last and at + size >= len(data)
            self._h2.send_data(stream_id, data[at : at + size], end_stream=ends)
        # A client acknowledges each piece twice: for the stream and for the connection.
        self._control_frames -= min(self._control_frames, 4.0 * len(pieces))
        self._flush()

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Returns window bytes to the client: the application has read them."""
        if not self._closed and size:
            self._h2.acknowledge_received_data(size, stream_id)
            self._flush()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Ends a stream, if it is open."""
        if self._closed:
            return
        try:
            self._h2.reset_stream(stream_id, code)
        except ProtocolError:
            # The stream is closed or unknown.
            self._stay_open()
        self._flush()

    def finished(self, stream: Stream) -> None:
        """Removes the stream of a request that the application has finished."""
        del self._streams[stream.id]
        self._state.total_requests += 1
        if self._closed:
            return
        self._control_frames -= min(self._control_frames, 1.0)
        self.acknowledge(stream.id, stream.held)
        if stream.complete and not stream.ended and not stream.gone:
            # The response is complete: the rest of the request is not needed.
            self.reset(stream.id, ErrorCodes.NO_ERROR)
        if self._streams:
            return
        if self._leaving:
            self._close()
        else:
            self._await_request(self._limits.idle)


def _settings(streams: int) -> Settings:
    values = {
        SettingCodes.MAX_CONCURRENT_STREAMS: streams,
        SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
    }
    return Settings(client=False, initial_values=values)
