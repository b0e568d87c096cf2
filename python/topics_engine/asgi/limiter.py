"""Limits on open requests and streams, and on the bytes of request bodies."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from .messages import CLOSE, HttpError

RETRY_MS = 1000


class Limiter:
    """Counts open requests or streams, in total and by client; a limit of 0 is no limit."""

    def __init__(self, name: str, most: int, per_key: int) -> None:
        self._name = name
        self._most = most
        self._per_key = per_key
        self.taken: Counter[str] = Counter()
        self.total = 0

    @contextlib.contextmanager
    def acquire(self, label: str) -> Iterator[None]:
        """Counts one for the duration of the block; 429 at a limit."""
        if self._most and self.total >= self._most:
            raise _full(self._name, self._most)
        if self.is_full(label):
            raise _full(f"{self._name}_per_key", self._per_key)
        self.take(label)
        try:
            yield
        finally:
            self.give(label)

    def is_full(self, label: str) -> bool:
        """Whether a client is at its limit."""
        return bool(label and self._per_key and self.taken[label] >= self._per_key)

    def take(self, label: str) -> None:
        """Counts one for a client."""
        self.total += 1
        self.taken[label] += 1

    def give(self, label: str) -> None:
        """Counts one less for a client."""
        self.total -= 1
        self.taken[label] -= 1
        if not self.taken[label]:
            del self.taken[label]


class ByteBudget:
    """A limit on the bytes of all bodies that are being received; 0 is no limit."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.taken = 0

    def take(self, size: int) -> bool:
        """Counts bytes; returns False, and counts nothing, over the limit."""
        if self._most and self.taken + size > self._most:
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Releases bytes."""
        self.taken -= size

    def full(self) -> HttpError:
        """The error of a request over the limit. It closes the connection, whose remaining body is
        dropped.
        """
        error = _full(self._name, self._most)
        error.headers.append(CLOSE)
        return error


def _full(limit: str, most: int) -> HttpError:
    message = f"{limit} is at its limit of {most}: close some, or try again later"
    detail = {"limit": limit, "max": most, "retry_after_ms": RETRY_MS}
    return HttpError(429, "throttled", message, detail)
