"""gzip, both ways: bodies that say so, answers for clients that ask."""

from __future__ import annotations

import gzip
import zlib

from .messages import HttpError

SMALLEST = 1024
"""Answers below this are not worth it."""
THREADED = 256 << 10
"""Above this the loop would notice: it is done in a thread."""
_GZIP = 31


def inflate(body: bytes, limit: int) -> bytes:
    """What a gzip body holds: never more than `limit` bytes of it are made."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        out = inflater.decompress(body, limit + 1 if limit else 0)
        if not inflater.eof and (not limit or len(out) <= limit):
            out += inflater.flush()
    except zlib.error as error:
        raise HttpError(400, "invalid_request", f"the body is not gzip: {error}") from None
    if limit and len(out) > limit:
        message = f"the body is over the limit of {limit} bytes when it is unpacked: split it"
        raise HttpError(413, "payload_too_large", message, {"max": limit})
    if not inflater.eof or inflater.unused_data:
        raise HttpError(400, "invalid_request", "the body is not one whole gzip member")
    return out


def deflate(body: bytes) -> bytes:
    """A body for a client that takes gzip."""
    return gzip.compress(body, compresslevel=1, mtime=0)


def wanted(accept: bytes | None, size: int) -> bool:
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
