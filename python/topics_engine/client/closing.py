"""What ends calls and iterations: `with` blocks, and cancel scopes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

Self = TypeVar("Self", bound="Closing")


class Closing:
    """Closed at the end of a `with` block."""

    __slots__ = ()

    def close(self) -> None:
        """Ends it. Idempotent."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CancelScope:
    """Calls that end together. Thread-safe."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wakers: dict[object, Callable[[], object]] = {}
        self.is_cancelled = False

    def cancel(self) -> None:
        """Wakes whoever waits in one of the calls; none begins any more. Idempotent."""
        if self._pid != os.getpid():
            # What waits, waits in the process that this is a fork of.
            self.is_cancelled = True
            return
        with self._lock:
            self.is_cancelled = True
            for waker in self._wakers.values():
                waker()

    def add_waker(self, waker: Callable[[], object]) -> object:
        """Has `waker` called when this ends, or has ended, until what is returned here is given to
        `remove_waker`. It must not block, nor mind being called twice.
        """
        key = object()
        with self._lock:
            self._wakers[key] = waker
            if self.is_cancelled:
                waker()
        return key

    def remove_waker(self, key: object) -> None:
        """The waker is not called any more."""
        with self._lock:
            del self._wakers[key]

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Calls to a server that are made in the block are of this ending, too."""
        before = current_scope.set(self)
        try:
            yield
        finally:
            current_scope.reset(before)


current_scope: ContextVar[CancelScope | None] = ContextVar("current_scope", default=None)
"""Of the calls that are being made here."""
