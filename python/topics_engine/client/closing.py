"""Closable handles, and cancel scopes that wake the calls of a closed iterator."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NoReturn, TypeVar

Self = TypeVar("Self", bound="Closing")


class Handle:
    """What belongs to an open database, and so to its process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        message = (
            f"a {type(self).__name__} belongs to the process that opened it and cannot be pickled: "
            "open or connect again where it is used, with te.open or te.connect"
        )
        raise TypeError(message)


class Closing(Handle):
    """A handle that the end of a `with` block closes."""

    __slots__ = ()

    def close(self) -> None:
        """Closes it. Idempotent."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class OneShot:
    """An event that is set once, also by a signal handler that interrupts its wait.

    `threading.Event` takes a lock that the interrupted code of the same thread may hold.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Ends the wait. Idempotent."""
        with contextlib.suppress(RuntimeError):
            self._unset.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, in one thread; returns False after `timeout` seconds."""
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        if self._unset.acquire(timeout=-1 if timeout is None else timeout):
            self.set()
            return True
        return False


class CancelScope:
    """A group of calls that are cancelled together. Thread-safe, and safe in a signal handler."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        # A signal handler may cancel while the code that it interrupted holds the lock.
        self._lock = threading.RLock()
        self._wakers: dict[object, Callable[[], object]] = {}
        self.is_cancelled = False

    def cancel(self) -> None:
        """Wakes every call of the scope; later calls fail immediately. Idempotent."""
        if self._pid != os.getpid():
            # The waiting calls belong to the parent process of this fork.
            self.is_cancelled = True
            return
        with self._lock:
            self.is_cancelled = True
            for waker in list(self._wakers.values()):
                waker()

    def add_waker(self, waker: Callable[[], object]) -> object:
        """Registers a function that `cancel` calls; if the scope is cancelled already, calls it
        now.

        The waker must not block and may be called twice. Returns the key for `remove_waker`.
        """
        key = object()
        with self._lock:
            self._wakers[key] = waker
            if self.is_cancelled:
                waker()
        return key

    def remove_waker(self, key: object) -> None:
        """Unregisters a waker."""
        with self._lock:
            del self._wakers[key]

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Makes this the `current_scope` of the block."""
        before = current_scope.set(self)
        try:
            yield
        finally:
            current_scope.reset(before)


current_scope: ContextVar[CancelScope | None] = ContextVar("current_scope", default=None)
"""The scope of the calls that the current thread or task makes."""
