"""Limiter that requests and streams hold: taken when they begin, given back however they end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from .messages import CLOSE, HttpError

RETRY_MS = 1000


class Limiter:
    """At most so many in all, and for each client; 0 is no limit."""

    def __init__(self, name: str, most: int, per_key: int) -> None:
        self._name = name
        self._most = most
        self._per_key = per_key
        self.taken: Counter[str] = Counter()
        self.total = 0

    @contextlib.contextmanager
    def acquire(self, label: str) -> Iterator[None]:
        """A slot for a client; without keys there is only the limit of all."""
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
        """Whether a client has all that one may have."""
        return bool(label and self._per_key and self.taken[label] >= self._per_key)

    def take(self, label: str) -> None:
        """Counts a slot for a client."""
        self.total += 1
        self.taken[label] += 1

    def give(self, label: str) -> None:
        """A client has one slot less."""
        self.total -= 1
        self.taken[label] -= 1
        if not self.taken[label]:
            del self.taken[label]


class ByteBudget:
    """Bytes of all bodies that are being received, at most so many in all; 0 is no limit."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.taken = 0

    def take(self, size: int) -> bool:
        """Counts bytes; false, and nothing counted, when they are too many."""
        if self._most and self.taken + size > self._most:
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """So many are not held any more."""
        self.taken -= size

    def full(self) -> HttpError:
        """What a request is told whose bytes are too many. It ends its connection: what is still to
        come of its body is not kept.
        """
        error = _full(self._name, self._most)
        error.headers.append(CLOSE)
        return error


def _full(limit: str, most: int) -> HttpError:
    message = f"{limit} is at its limit of {most}: close some, or try again later"
    detail = {"limit": limit, "max": most, "retry_after_ms": RETRY_MS}
    return HttpError(429, "throttled", message, detail)
