"""Pages that are fetched before they are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_CALLS = 8
# An older page is fetched again: it may have records that were deleted since.
FRESH_SECONDS = 2.0


class PendingCall(Protocol[T_co]):
    """A call that runs in the background."""

    def result(self) -> T_co: ...


class Prefetcher(Generic[T]):
    """Calls that run in the background, by what they fetch. Thread-safe."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, tuple[float, PendingCall[T]]] = {}

    def begin(self, key: Hashable, begin: Callable[[], PendingCall[T]]) -> None:
        """Starts a call, unless too many were started and never taken."""
        now = time.monotonic()
        for known, (since, _) in list(self._calls.items()):
            if now - since > FRESH_SECONDS:
                self._calls.pop(known, None)
        if len(self._calls) < MAX_CALLS:
            self._calls[key] = now, begin()

    def take(self, key: Hashable) -> T | None:
        """Waits for the result of a call; `None` if there is none, or it is too old."""
        since, call = self._calls.pop(key, (0.0, None))
        if call is None or time.monotonic() - since > FRESH_SECONDS:
            return None
        return call.result()
