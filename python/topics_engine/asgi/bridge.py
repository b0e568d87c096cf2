"""The verbs on one event loop.

A verb is answered inside the call, or later by a thread of the engine. Writes are staged; one flush
at the end of a loop tick commits all of them as one group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from .. import _core
from ..loops import Pending
from .messages import NO_TRACE, HttpError, TraceHeaders

T = TypeVar("T")
Answer = tuple[int, bytes]
Completion = tuple[int, int, bytes]


class CoreBridge(Protocol):
    """The methods of `_core.Bridge` that the loop uses."""

    @property
    def fd(self) -> int: ...
    def drain(self) -> list[Completion]: ...


class CoreHttp(Protocol):
    """The methods of `_core.Http` that the loop uses."""

    @property
    def bridge(self) -> CoreBridge: ...
    @property
    def staged(self) -> bool: ...
    def call(
        self,
        verb: str,
        name: str,
        query: bytes,
        body: bytes,
        flags: int,
        token: int,
        key: bytes = b"",
        subresource: str = "",
        grant: int = 0,
        traceparent: bytes | None = None,
        tracestate: bytes | None = None,
    ) -> Answer | None: ...
    def pull(self, token: int) -> tuple[list[bytes], int] | None: ...
    def take_rest(self, token: int) -> bytes: ...
    def failure(self, token: int) -> tuple[str, str] | None: ...
    def message(self, token: int, text: bytes, read: bool, write: bool) -> None: ...
    def extend_grants(self, all: list[tuple[str, list[str], bool]]) -> None: ...
    def flush(self) -> None: ...
    def cancel(self, token: int) -> None: ...
    def set_ready(self, ready: bool) -> None: ...
    def close(self) -> None: ...


class Wake:
    """An event that stays set until someone has waited for it."""

    __slots__ = ("_there", "_waiter")

    def __init__(self) -> None:
        self._there = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._there = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        if not self._there:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._there = False


PULL_BYTES = 64 << 10
"""Maximum bytes of one pull of a stream; a larger message of a socket is pulled whole."""
TURN_BYTES = 1 << 20
"""Bytes that the streams of a loop pull in one turn."""
MIN_PULL = 2 << 10
"""Bytes that a pull takes of a turn at least: the time that it takes with few bytes."""


class TurnBudget:
    """Bounds the bytes that the streams of a loop pull in one turn. The other streams wait for the
    next turn, in order, so the requests of all connections are served between two turns.
    """

    __slots__ = ("_left", "_loop", "_ticking", "_waiters", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = TURN_BYTES
        self._ticking = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Streams that were woken and have not pulled yet.
        self._woken = 0

    async def wait(self) -> None:
        """Waits for a turn with bytes left."""
        if self._left > 0 and not self._waiters:
            return
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                self._woken -= 1

    def take(self, size: int) -> None:
        """Takes the bytes of a pull."""
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._next_turn)
        self._left -= max(size, MIN_PULL)
        self._wake()

    def _next_turn(self) -> None:
        self._left = TURN_BYTES
        self._ticking = bool(self._waiters)
        if self._ticking:
            self._loop.call_soon(self._next_turn)
            self._wake()

    def _wake(self) -> None:
        while self._waiters and self._left > self._woken * PULL_BYTES:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._woken += 1


class LoopBridge:
    """Calls verbs on one event loop and delivers their answers."""

    def __init__(self, http: CoreHttp) -> None:
        self._http = http
        self._bridge = http.bridge
        self._pending: Pending[Answer] = Pending(self._bridge.fd, self._drain)
        self._streams: dict[int, Wake] = {}
        self._turn = TurnBudget(self._pending.loop)
        self._flush_due = False

    @property
    def pending(self) -> int:
        """The number of awaited answers."""
        return len(self._pending)

    def call(
        self,
        route: str,
        name: str,
        query: bytes,
        body: bytes,
        flags: int,
        key: bytes,
        part: str = "",
        grant: int = 0,
        trace: TraceHeaders = NO_TRACE,
    ) -> tuple[int, Answer | None]:
        """Starts a call; returns its token, and its answer if it is there already."""
        token = self._pending.next_token()
        answer = self._http.call(route, name, query, body, flags, token, key, part, grant, *trace)
        if answer is None:
            self._pending.expect(token)
            if self._http.staged:
                self.flush_soon()
        return token, answer

    def extend_grants(self, grants: list[tuple[str, list[str], bool]]) -> None:
        """Passes grants to the core, which may know the first of them."""
        self._http.extend_grants(grants)

    def wake_of(self, token: int) -> Wake:
        """The event that is set when a stream has bytes to pull."""
        return self._streams.setdefault(token, Wake())

    async def pull(self, token: int) -> tuple[list[bytes], int] | None:
        """The bytes that a stream has, in a turn of the loop that has bytes left; `None` if it has
        ended.
        """
        await self._turn.wait()
        pulled = self._http.pull(token)
        self._turn.take(0 if pulled is None else sum(map(len, pulled[0])))
        return pulled

    def take_rest(self, token: int) -> bytes:
        """The rest of the events of which a part was pulled."""
        return self._http.take_rest(token)

    def failure(self, token: int) -> str:
        """Why a stream broke off, for the log."""
        code, message = self._http.failure(token) or ("unknown", "no reason is known")
        return f"{code}: {message}"

    def pump(self, begin: Callable[..., T], token: int, ended: Callable[[bool], object]) -> T:
        """Has a stream written by the server's `begin`, instead of pulling it."""
        return begin(self._http, token, ended)

    async def message(self, token: int, text: bytes, read: bool, write: bool) -> None:
        """Passes a message of a socket's client; its answer is pulled. A large one is parsed on
        another thread.
        """
        if len(text) <= _core.LARGE_BODY:
            self._http.message(token, text, read, write)
        else:
            await asyncio.to_thread(self._http.message, token, text, read, write)
        if self._http.staged:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Schedules a flush of staged writes at the end of the loop tick."""
        if not self._flush_due:
            self._flush_due = True
            self._pending.loop.call_soon(self._flush)

    def answer_of(self, token: int) -> asyncio.Future[Answer]:
        """The future of an answer that was not there at the call."""
        return self._pending[token]

    def cancel_call(self, token: int) -> None:
        """Stops waiting for an answer, and frees its slot in the engine."""
        stream = self._streams.pop(token, None)
        if self._pending.forget(token) or stream is not None:
            self._http.cancel(token)

    def _flush(self) -> None:
        self._flush_due = False
        try:
            self._http.flush()
        finally:
            # Its completions, and those that were there before it, are not signalled.
            self._drain()

    def _drain(self) -> None:
        for token, status, body in self._bridge.drain():
            if status != 0:
                self._pending.resolve(token, (status, body))
            elif token in self._streams:
                self._streams[token].set()

    def end_waits(self) -> None:
        """Ends waiting reads with the records that there are, and flushes staged writes."""
        self._http.set_ready(False)
        self._http.flush()
        self._http.close()
        self._drain()

    def close(self) -> None:
        """Stops listening and fails awaited answers; the outcome of their writes is unknown."""
        gone = "the server went down meanwhile"
        self._pending.end(lambda: HttpError(503, "shutting_down", gone))
        for wake in self._streams.values():
            wake.set()
