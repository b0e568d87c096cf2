"""The bridge between an event loop and the native core: one per loop, for all databases."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from .. import _core
from ..client.database import close_all
from ..errors import Closed
from ..loops import Pending

P = ParamSpec("P")
T = TypeVar("T")


class Bridge:
    """The pending calls of one event loop.

    An answer that no task awaits any more is dropped. Answers that must not be lost this way (a
    page of a consumer, jobs of a claim) undo themselves when they are dropped.
    """

    def __init__(self) -> None:
        self.calls = _core.Calls()
        _all_calls.add(self.calls)
        self.pid = os.getpid()
        self._pending: Pending[Any] = Pending(self.calls.fd, self._drain)

    def _drain(self) -> None:
        for token, value in self.calls.drain():
            if isinstance(value, BaseException):
                self._pending.fail(token, value)
            else:
                self._pending.resolve(token, value)

    def token(self) -> int:
        """Returns a token for a call that the loop's thread makes."""
        return self._pending.next_token()

    async def answer(self, token: int) -> Any:
        """Awaits the answer to a call that was started after its token was taken, without an
        `await`.
        """
        try:
            return await self._pending.expect(token)
        finally:
            self._pending.forget(token)

    async def run(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a verb that may wait for the disk on a thread of the pool."""
        token = self.token()
        self.calls.run(token, verb, args, kwargs)
        answer: T = await self.answer(token)
        return answer

    async def run_long(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a verb on its own thread, so that it blocks no other call."""
        token = self.token()
        self.calls.run(token, verb, args, kwargs, long=True)
        answer: T = await self.answer(token)
        return answer

    async def wait(
        self,
        timeout: float | None,
        begin: Callable[Concatenate[_core.Calls, int, P], bool | None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Any:
        """Awaits what `begin` starts; returns `None` if it returns false, because there is nothing
        to wait for, or if the timeout has passed.
        """
        token = self.token()
        if begin(self.calls, token, *args, **kwargs) is False:
            return None
        try:
            return await self.woken(token, timeout)
        finally:
            self.calls.cancel(token)

    async def woken(self, token: int, timeout: float | None = None) -> Any:
        """Awaits the answer to a call; returns `None` when the timeout has passed."""
        if timeout is None:
            return await self.answer(token)
        timer = self._pending.loop.call_later(timeout, self._pending.resolve, token, None)
        try:
            return await self.answer(token)
        finally:
            timer.cancel()

    def wake(self, token: int) -> None:
        """Ends a wait as its timeout would."""
        self._pending.resolve(token, None)

    def end(self) -> None:
        """Stops listening; pending calls raise `Closed`."""
        self._pending.end(lambda: Closed("the last database of this loop was closed"))


_all_calls: weakref.WeakSet[_core.Calls] = weakref.WeakSet()
_bridges: dict[asyncio.AbstractEventLoop, Bridge] = {}
_lock = threading.Lock()
_databases = 0


def current_bridge() -> Bridge:
    """The bridge of the running loop."""
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None or bridge.pid != os.getpid():
        with _lock:
            for gone in [known for known in _bridges if known.is_closed()]:
                del _bridges[gone]
            bridge = _bridges[loop] = Bridge()
    return bridge


def retain() -> None:
    """Counts a database that is open or being opened."""
    global _databases
    with _lock:
        _databases += 1


def release() -> None:
    """Counts a closed database. After the last one every bridge stops listening."""
    global _databases
    with _lock:
        _databases -= 1
        if _databases > 0:
            return
        idle = dict(_bridges)
        _bridges.clear()
    here_now = asyncio.get_running_loop()
    for loop, bridge in idle.items():
        if loop is here_now:
            bridge.end()
        elif not loop.is_closed():
            # The loop may be closed by now: then its bridge no longer listens.
            try:
                loop.call_soon_threadsafe(bridge.end)
            except RuntimeError:
                continue


@atexit.register
def _finish() -> None:
    """Waits for running verbs at exit, at most 10 s: a thread cannot return to a finalized
    interpreter.
    """
    close_all()
    deadline = time.monotonic() + 10
    while any(calls.running for calls in list(_all_calls)) and time.monotonic() < deadline:
        time.sleep(0.002)
