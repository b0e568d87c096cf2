"""Pages that are fetched before they are asked for, while what came before is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MOST = 8
# Older ones are fetched anew: what was deleted since is not handed out.
FRESH_SECONDS = 2.0


class PendingCall(Protocol[T_co]):
    """A call that is on its way."""

    def result(self) -> T_co: ...


class Prefetcher(Generic[T]):
    """The calls that were call, by what they are asked for. Thread-safe."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, tuple[float, PendingCall[T]]] = {}

    def begin(self, key: Hashable, begin: Callable[[], PendingCall[T]]) -> None:
        """Begins a call, unless there are many that nobody came for."""
        now = time.monotonic()
        for known, (since, _) in list(self._calls.items()):
            if now - since > FRESH_SECONDS:
                self._calls.pop(known, None)
        if len(self._calls) < MOST:
            self._calls[key] = now, begin()

    def take(self, key: Hashable) -> T | None:
        """What was call for this, when it comes; `None` when there is nothing fresh."""
        since, call = self._calls.pop(key, (0.0, None))
        if call is None or time.monotonic() - since > FRESH_SECONDS:
            return None
        return call.result()
