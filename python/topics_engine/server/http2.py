"""HTTP/2 on a connection whose client begins with it (prior knowledge, or ALPN).

The frames are the business of `h2`, which does no I/O; here they meet a transport and the
application. What a client can make the server keep is bounded: unread bodies by the windows,
answers by `MAX_UNSENT`, requests by `Limits.streams`, and frames that bring nothing by
`CONTROL_FRAME_BUDGET`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import uvicorn
from h2 import events
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import Decoder, HeaderTuple, HPACKDecodingError
from hpack.hpack import decode_integer
from hyperframe.frame import Frame, SettingsFrame
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from ..asgi.messages import MAX_HEADER_BYTES, MAX_HEADERS, Header
from .http2_stream import Stream, fill_scope, refuse
from .limits import Limits, WriteTimeout

STREAM_WINDOW = 256 << 10
CONNECTION_WINDOW = 1 << 20
MAX_UNSENT = 16 << 20
"""While so much of a connection's answers waits for its client, no other request begins."""
CONTROL_FRAME_BUDGET = 2000
"""Frames that bring nothing, beyond what time and answered requests excuse."""
CONTROL_FRAMES_PER_SECOND = 100
RESET = 10
"""What a request that is given up counts for."""
TABLE_UPDATES = 8
"""Changes of its table's size that a block of headers may begin with; two have a meaning."""
TABLE_SIZE = 4096
"""Bytes of the table for an answer's headers, unless the client wants a smaller one."""
SLICE = 8 << 10
"""Bytes between two looks at what a client has sent."""

# A block of headers that ends and is too large is left to the application, as in HTTP/1.1.
_HEADER_LIST = 2 * MAX_HEADER_BYTES + 32 * MAX_HEADERS
_USEFUL_EVENTS = (events.DataReceived, events.RequestReceived, events.TrailersReceived)
_KNOWN = frozenset(SettingCodes)


class _Decoder(Decoder):
    """Counts what a block of headers says of the table, instead of saying a header."""

    updates = 0

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        at = found = 0
        while at < len(data) and data[at] & 0xE0 == 0x20:
            _, size = decode_integer(data[at:], 5)
            at, found = at + size, found + 1
            if found > TABLE_UPDATES:
                raise HPACKDecodingError(f"more than {TABLE_UPDATES} updates of the table's size")
        self.updates += found
        return super().decode(data, raw)


class _Connection(H2Connection):
    """A connection that remembers few of its closed streams, and counts the frames it receives:
    not each of them is an event."""

    MAX_CLOSED_STREAMS = 1000

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        allowed = self.decoder.max_allowed_table_size
        self.decoder = _Decoder(_HEADER_LIST)
        self.decoder.max_allowed_table_size = allowed
        self.frames = 0

    def _receive_frame(self, frame: Frame) -> list[events.Event]:
        self.frames += 1
        if isinstance(frame, SettingsFrame):
            # One may hold thousands, of the same code too.
            self.frames += max(0, frame.body_len // 6 - len(_KNOWN))
        return super()._receive_frame(frame)

    def take_control_frames(self) -> int:
        """Frames, and updates of the table's size, since this was asked before."""
        decoder = self.decoder
        assert isinstance(decoder, _Decoder)
        found, self.frames, decoder.updates = self.frames + decoder.updates, 0, 0
        return found

    def bound_settings(self, changed: Iterable[int]) -> None:
        """Keeps of a client's settings what has a meaning, and of the table for its answers no more
        than the usual: both grow as the client says.
        """
        for code in changed:
            if code not in _KNOWN:
                self.remote_settings.pop(code, None)
        encoder = self.encoder
        if encoder.header_table_size > TABLE_SIZE:
            encoder.header_table_size = TABLE_SIZE
        if sizes := encoder.table_size_changes:
            # The smallest and the last are all that a client needs to hear.
            encoder.table_size_changes = list(dict.fromkeys((min(sizes), sizes[-1])))


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
        self._h2 = _Connection(H2Configuration(client_side=False))
        self._streams: dict[int, Stream] = {}
        self._writable = True
        # Nothing of the client is looked at any more.
        self._closed = False
        # No request is taken any more; those that there are, are answered.
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
        self._write_timeout = WriteTimeout(self.loop, transport, self._limits.stall)
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._h2.local_settings = _settings(self._limits.streams)
        self._h2.initiate_connection()
        # A client that does not know the limit yet loses a stream by it, not the connection.
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
        # Answers to control frames would pile up behind a client that only sends.
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
        """The server goes down: takes no request any more, and closes behind the last answer."""
        if self._closed:
            return
        self._leaving = True
        self._h2.close_connection(ErrorCodes.NO_ERROR)
        self._stay_open()
        self._flush()
        if not self._streams:
            self._close()

    def _stay_open(self) -> None:
        # For `h2` a connection is over with its GOAWAY. For the protocol it is so when the streams
        # that it names are.
        self._h2.state_machine.state = ConnectionState.SERVER_OPEN

    def _close(self) -> None:
        self._closed = True
        self._request_is_here()
        self._transport.close()
        self._write_timeout.transport_closing()

    def _abort(self, code: ErrorCodes) -> None:
        """Ends the connection, with whatever is open on it."""
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

    # What the client sends.

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), SLICE):
            if self._closed:
                return
            try:
                happened = self._h2.receive_data(data[at : at + SLICE])
            except ProtocolError:
                # What says so is there to be sent already.
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
            # Its application may go on for a while, and counts until it has ended.
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

    # What the streams ask of it.

    @property
    def default_headers(self) -> list[Header]:
        """What every answer carries."""
        return self._state.default_headers

    async def wait_for_capacity(self) -> None:
        """Waits until little enough of other answers waits to be taken."""
        while self._unsent > MAX_UNSENT and not self._closed:
            self._sent.clear()
            await self._sent.wait()

    def set_stall_factor(self, times: float) -> None:
        """The client may work on what it has for so many times as long as usual."""
        self._write_timeout.set_stall_factor(times)

    def add_unsent(self, size: int) -> None:
        """So much more, or less, of an answer waits to be sent."""
        self._unsent += size
        if size < 0 and self._unsent <= MAX_UNSENT:
            self._sent.set()

    def send_window(self, stream_id: int) -> int:
        """Bytes that may be sent now."""
        if not self._writable or self._closed:
            return 0
        return max(0, self._h2.local_flow_control_window(stream_id))

    def begin(self, stream_id: int, headers: list[Header]) -> None:
        """The head of an answer, which is sent with the next thing that is."""
        if not self._closed:
            self._h2.send_headers(stream_id, headers)

    def informational(self, stream_id: int) -> None:
        """The body that the client has asked about is welcome."""
        if not self._closed:
            self._h2.send_headers(stream_id, [(b":status", b"100")])
            self._flush()

    def data(self, stream_id: int, data: bytes, last: bool) -> None:
        """A piece of an answer, not larger than its room."""
        if self._closed:
            return
        size = self._h2.max_outbound_frame_size
        pieces = range(0, len(data), size) if data else (0,)
        for at in pieces:
            ends = last and at + size >= len(data)
            self._h2.send_data(stream_id, data[at : at + size], end_stream=ends)
        # Clients say of every piece that they have it, of the stream and of the connection.
        self._control_frames -= min(self._control_frames, 4.0 * len(pieces))
        self._flush()

    def acknowledge(self, stream_id: int, size: int) -> None:
        """The application has read so much of a body."""
        if not self._closed and size:
            self._h2.acknowledge_received_data(size, stream_id)
            self._flush()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Ends a stream, if it has not ended."""
        if self._closed:
            return
        try:
            self._h2.reset_stream(stream_id, code)
        except ProtocolError:
            # It is closed, or was never there.
            self._stay_open()
        self._flush()

    def finished(self, stream: Stream) -> None:
        """The application is done with a request."""
        del self._streams[stream.id]
        self._state.total_requests += 1
        if self._closed:
            return
        self._control_frames -= min(self._control_frames, 1.0)
        self.acknowledge(stream.id, stream.held)
        if stream.complete and not stream.ended and not stream.gone:
            # The answer is whole: what is still to come of the request is not needed.
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
