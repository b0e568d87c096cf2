"""gzip of request bodies and responses."""

from __future__ import annotations

import asyncio
import gzip
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

from .messages import HttpError

SMALLEST = 1024
"""Smaller responses are not compressed."""
THREADED = 256 << 10
"""Larger responses are compressed in a thread, so that they do not block the loop."""
MAX_RATIO = 200
"""The largest ratio of a body's size to its compressed size, beyond `UNRATED` bytes. JSON of real
records compresses 5 to 50 times; zlib allows 1 032."""
UNRATED = 1 << 20
MAX_INFLATED_BODIES = 1
"""Decompressed bodies in memory at the same time. More threads would mean more arenas of the
allocator, which return less memory than they took."""
_GZIP = 31
_TAKEN, _MADE = 64 << 10, 256 << 10
"""Compressed and decompressed bytes of one step."""


def inflate(body: bytes, limit: int) -> bytes:
    """Decompresses a gzip body, to little more than `limit` bytes unless that is 0."""
    inflater = zlib.decompressobj(_GZIP)
    pieces: list[bytes] = []
    made = 0
    try:
        for at in range(0, len(body), _TAKEN):
            rest = body[at : at + _TAKEN]
            while rest and not inflater.eof:
                pieces.append(inflater.decompress(rest, _MADE))
                made += len(pieces[-1])
                rest = inflater.unconsumed_tail
                _check(made, at + _TAKEN - len(rest), limit)
            if inflater.eof:
                break
        pieces.append(inflater.flush())
    except zlib.error as error:
        raise HttpError(400, "invalid_request", f"the body is not valid gzip: {error}") from None
    _check(made + len(pieces[-1]), len(body), limit)
    if not inflater.eof or inflater.unused_data or at + _TAKEN < len(body):
        raise HttpError(400, "invalid_request", "the body must be exactly one complete gzip member")
    return b"".join(pieces)


def _check(made: int, taken: int, limit: int) -> None:
    if made > (limit or sys.maxsize):
        message = f"the decompressed body is over the limit of {limit} bytes: split it"
        raise HttpError(413, "payload_too_large", message, {"max": limit})
    if made > max(UNRATED, MAX_RATIO * taken):
        message = (
            f"the body decompresses to more than {MAX_RATIO} times its size: send it uncompressed"
        )
        raise HttpError(413, "payload_too_large", message, {"max_ratio": MAX_RATIO})


class Body:
    """The body of a request, and the permit that it holds while it is in memory decompressed."""

    __slots__ = ("_permit", "data", "flags")

    def __init__(self, data: bytes, flags: int, permit: asyncio.Semaphore | None = None) -> None:
        self.data = data
        self.flags = flags
        self._permit = permit

    def release(self) -> None:
        """Drops the body once the core has what it needs. Idempotent."""
        self.data = b""
        if self._permit is not None:
            self._permit.release()
            self._permit = None


class Inflater:
    """Decompresses bodies on threads; at most `MAX_INFLATED_BODIES` are in memory decompressed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._permits = asyncio.Semaphore(MAX_INFLATED_BODIES)
        self._threads = ThreadPoolExecutor(MAX_INFLATED_BODIES, thread_name_prefix="topics-inflate")

    async def inflate(self, body: bytes, flags: int) -> Body:
        """Decompresses a body."""
        await self._permits.acquire()
        made = Body(b"", flags, self._permits)
        try:
            loop = asyncio.get_running_loop()
            made.data = await loop.run_in_executor(self._threads, inflate, body, self._limit)
        except BaseException:
            made.release()
            raise
        return made


def deflate(body: bytes) -> bytes:
    """Compresses a response."""
    return gzip.compress(body, compresslevel=1, mtime=0)


def accepts_gzip(accept: bytes | None, size: int) -> bool:
    """Whether a response of this size is compressed: only if the client names gzip."""
    if accept is None or size < SMALLEST:
        return False
    for item in accept.lower().split(b","):
        kind, *parameters = (part.strip() for part in item.split(b";"))
        if kind == b"gzip":
            quality = next((p[2:] for p in parameters if p.startswith(b"q=")), b"1")
            try:
                return float(quality) > 0
            except ValueError:
                return False
    return False
