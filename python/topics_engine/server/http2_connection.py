"""`h2`'s connection, with bounds on what a client can make it keep."""

from __future__ import annotations

from collections.abc import Iterable

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hpack import Decoder, HeaderTuple, HPACKDecodingError
from hpack.hpack import decode_integer
from hyperframe.frame import Frame, SettingsFrame

from ..asgi.messages import MAX_HEADER_BYTES, MAX_HEADERS

TABLE_UPDATES = 8
"""Table size updates in front of a block of headers; more than two are useless."""
TABLE_SIZE = 4096
"""Bytes of the table of response headers, unless the client sets a smaller one."""

# The application refuses larger headers, as in HTTP/1.1; this limit only bounds memory.
_HEADER_LIST = 2 * MAX_HEADER_BYTES + 32 * MAX_HEADERS
_KNOWN = frozenset(SettingCodes)


class CountingDecoder(Decoder):
    """Counts the updates of the table size in front of a block of headers."""

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


class BoundedConnection(H2Connection):
    """Keeps few closed streams, and counts received frames, of which not each is an event."""

    MAX_CLOSED_STREAMS = 1000

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        allowed = self.decoder.max_allowed_table_size
        self.decoder = CountingDecoder(_HEADER_LIST)
        self.decoder.max_allowed_table_size = allowed
        self.frames = 0

    def _receive_frame(self, frame: Frame) -> list[events.Event]:
        self.frames += 1
        if isinstance(frame, SettingsFrame):
            # One frame may have thousands of settings, also repeated ones.
            self.frames += max(0, frame.body_len // 6 - len(_KNOWN))
        return super()._receive_frame(frame)

    def take_control_frames(self) -> int:
        """Frames and table size updates since the last call."""
        decoder = self.decoder
        assert isinstance(decoder, CountingDecoder)
        found, self.frames, decoder.updates = self.frames + decoder.updates, 0, 0
        return found

    def bound_settings(self, changed: Iterable[int]) -> None:
        """Drops unknown settings of the client, and limits the table of response headers: a client
        could grow both.
        """
        for code in changed:
            if code not in _KNOWN:
                self.remote_settings.pop(code, None)
        encoder = self.encoder
        if encoder.header_table_size > TABLE_SIZE:
            encoder.header_table_size = TABLE_SIZE
        if sizes := encoder.table_size_changes:
            # The client needs only the smallest and the last size.
            encoder.table_size_changes = list(dict.fromkeys((min(sizes), sizes[-1])))
