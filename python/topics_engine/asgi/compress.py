"""gzip, both ways: bodies that say so, answers for clients that ask."""

from __future__ import annotations

import asyncio
import gzip
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

from .messages import HttpError

SMALLEST = 1024
"""Answers below this are not worth it."""
THREADED = 256 << 10
"""Above this the loop would notice: it is done in a thread."""
MAX_RATIO = 200
"""How many times its size a body may have when it is unpacked, beyond `UNRATED`. JSON of real
records is packed 5 to 50 times smaller; zlib can do 1 032."""
UNRATED = 1 << 20
MAX_INFLATED_BODIES = 1
"""Bodies that are unpacked at the same time, or are and have not been handed to the core. Each
thread that makes them has an arena of the allocator, which gives back less than it took."""
_GZIP = 31
_TAKEN, _MADE = 64 << 10, 256 << 10
"""Bytes of a body that are looked at, and made of them, in one step."""


def inflate(body: bytes, limit: int) -> bytes:
    """What a gzip body holds. Never much more than `limit` bytes are made, unless that is 0."""
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
    """The body of a request, and the permit that it holds while it is in memory unpacked."""

    __slots__ = ("_permit", "data", "flags")

    def __init__(self, data: bytes, flags: int, permit: asyncio.Semaphore | None = None) -> None:
        self.data = data
        self.flags = flags
        self._permit = permit

    def release(self) -> None:
        """The core has what it needs of it. Idempotent."""
        self.data = b""
        if self._permit is not None:
            self._permit.release()
            self._permit = None


class Inflater:
    """Unpacks bodies off the loop, `MAX_INFLATED_BODIES` of them: however many are sent, that is
    how often one is in memory unpacked.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._permits = asyncio.Semaphore(MAX_INFLATED_BODIES)
        self._threads = ThreadPoolExecutor(MAX_INFLATED_BODIES, thread_name_prefix="topics-inflate")

    async def inflate(self, body: bytes, flags: int) -> Body:
        """A body as the core takes it."""
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
    """A body for a client that takes gzip."""
    return gzip.compress(body, compresslevel=1, mtime=0)


def accepts_gzip(accept: bytes | None, size: int) -> bool:
    """Whether an answer of this size goes packed. Never unless the client asks by name."""
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
