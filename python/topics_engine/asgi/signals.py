"""Begins the shutdown of applications when the process is told to end.

An ASGI server sends the lifespan's shutdown event after its connections have ended, and so would
wait for open streams. SIGTERM and SIGINT come first: the applications end their streams, then the
server's own handler runs. It waits a moment for the streams, because a server may drop what it has
not yet written.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

SIGNALS = (signal.SIGTERM, signal.SIGINT)


STREAMS_SECONDS = 1.0
"""For how long the server's handler waits for open streams."""
POLL_SECONDS = 0.01

Handler = Callable[[int, FrameType | None], Any]


class Watcher(NamedTuple):
    """An application that ends its streams at a signal."""

    loop: asyncio.AbstractEventLoop
    begin: Callable[[], None]
    streams: Callable[[], int]
    """The number of its open streams."""


class ShutdownSignals:
    """One handler of each signal for all applications of the process, before the handler that was
    there.
    """

    def __init__(self) -> None:
        self._watchers: dict[object, Watcher] = {}
        self._is_told = False
        # The handler that was installed, and the one before it.
        self._installed: dict[int, tuple[Handler, Handler]] = {}

    def watch(
        self, owner: object, begin: Callable[[], None], streams: Callable[[], int] = int
    ) -> None:
        """Calls `begin` on the running loop at a signal, until `forget(owner)`; the server's
        handler waits while there are open `streams`.

        Does nothing outside of the main thread, where Python has no signals, and for a signal that
        the server does not handle.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        # A loop that was closed without a shutdown, as in tests, has nothing to end.
        self._watchers = {o: w for o, w in self._watchers.items() if not w.loop.is_closed()}
        self._watchers[owner] = Watcher(asyncio.get_running_loop(), begin, streams)
        self._is_told = False
        for number in SIGNALS:
            before = signal.getsignal(number)
            if callable(before) and not self._is_installed(number):
                handler = self._before(before)
                self._installed[number] = (handler, before)
                signal.signal(number, handler)

    def forget(self, owner: object) -> None:
        """Ends `watch`; the last one restores the server's handlers."""
        self._watchers.pop(owner, None)
        if self._watchers or threading.current_thread() is not threading.main_thread():
            return
        for number, (_, before) in self._installed.items():
            # A handler that was installed over this one goes on to call it.
            if self._is_installed(number):
                signal.signal(number, before)
        self._installed.clear()

    def _is_installed(self, number: int) -> bool:
        return number in self._installed and signal.getsignal(number) is self._installed[number][0]

    def _before(self, previous: Handler) -> Handler:
        """The handler that begins the shutdowns, then calls `previous`."""

        def handle(number: int, frame: FrameType | None) -> None:
            watchers = [w for w in self._watchers.values() if not w.loop.is_closed()]
            for watcher in watchers:
                watcher.loop.call_soon_threadsafe(watcher.begin)
            busy = [w for w in watchers if w.streams()]
            if self._is_told or not busy:
                # A second signal is for the server alone: the loop may be blocked.
                previous(number, frame)
                return
            self._is_told = True
            loop = busy[0].loop
            deadline = time.monotonic() + STREAMS_SECONDS

            def end() -> None:
                if any(w.streams() for w in busy) and time.monotonic() < deadline:
                    loop.call_later(POLL_SECONDS, end)
                else:
                    # Once more around the loop, which writes what the streams have sent last.
                    loop.call_later(POLL_SECONDS, previous, number, None)

            loop.call_soon_threadsafe(end)

        return handle


signals = ShutdownSignals()
"""Signals are of the process, and so is this."""
