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


class Begun(Protocol[T_co]):
    """A call that is on its way."""

    def result(self) -> T_co: ...


class Ahead(Generic[T]):
    """The calls that were begun, by what they are asked for. Thread-safe."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, tuple[float, Begun[T]]] = {}

    def begin(self, key: Hashable, begin: Callable[[], Begun[T]]) -> None:
        """Begins a call, unless there are many that nobody came for."""
        now = time.monotonic()
        for known, (since, _) in list(self._begun.items()):
            if now - since > FRESH_SECONDS:
                self._begun.pop(known, None)
        if len(self._begun) < MOST:
            self._begun[key] = now, begin()

    def take(self, key: Hashable) -> T | None:
        """What was begun for this, when it comes; `None` when there is nothing fresh."""
        since, begun = self._begun.pop(key, (0.0, None))
        if begun is None or time.monotonic() - since > FRESH_SECONDS:
            return None
        return begun.result()
