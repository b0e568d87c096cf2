"""The transport of the sync client: urllib3, for any number of threads."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import IncompleteRead, RemoteDisconnected
from typing import TYPE_CHECKING, Generic, TypeVar

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
)

from ..client.closing import CancelScope, OneShot
from .connections import InterruptibleSemaphore, pool_of
from .transport import (
    CUT_OFF,
    EVENTS,
    NO_ANSWER,
    NO_BYTE,
    Answer,
    NoAnswer,
    Options,
    PoolKind,
    closed,
    content_of,
    forked,
    is_cancelled,
    not_connected,
    waking,
)

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

    from .prefetch import PendingCall

PIECE = 1 << 16
# Pieces that are buffered; then the thread stops reading, and the server has to wait.
STREAM_BUFFER_PIECES = 64
# Threads that prefetch pages.
BACKGROUND_THREADS = 4

T = TypeVar("T")


class _Inside(threading.local):
    """How many calls the current thread is in, and whether their end closes the pools."""

    calls = 0
    closes = False


_transport = _Inside()


def _is_of_others(record: logging.LogRecord) -> bool:
    return not _transport.calls


# A handler that writes what is logged to a topic would write what its own writes log, without end.
# What urllib3 logs for others stays.
for _module in ("connection", "connectionpool", "response", "util.retry"):
    logging.getLogger(f"urllib3.{_module}").addFilter(_is_of_others)


def _reason(error: Exception) -> str:
    """What went wrong, without the names of urllib3's objects."""
    match error:
        case NewConnectionError(__cause__=OSError() as cause):
            return not_connected(cause)
        case ConnectTimeoutError():
            return str(error.args[-1])
        case ReadTimeoutError():
            return NO_BYTE
        case ProtocolError(args=(_, RemoteDisconnected())):
            return NO_ANSWER
        case ProtocolError(args=(_, IncompleteRead())):
            return CUT_OFF
        case ProtocolError(args=(_, OSError() as cause)):
            return f"the connection ended: {cause.strerror or cause}"
    return str(error)


class SyncTransport:
    """Keep-alive connections by pool. A call blocks its thread; Ctrl-C interrupts it."""

    def __init__(self, options: Options) -> None:
        self._prefix = options.prefix
        self._headers = options.headers
        self._connect = options.connect_timeout
        self._pid = os.getpid()
        self._scope = CancelScope()
        self._inside = _Inside()
        self._starting = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pools = {kind: pool_of(options, self._scope) for kind in PoolKind}
        # Only short calls are limited: a waiting call would hold its permit for long.
        self._limits = {
            kind: InterruptibleSemaphore(options.pool, self._scope)
            for kind in (PoolKind.HOT, PoolKind.PLAIN)
        }

    def _open(
        self,
        kind: PoolKind,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: urllib3.Timeout,
        whole: bool,
    ) -> BaseHTTPResponse:
        if self._pid != os.getpid():
            raise forked()
        if is_cancelled(self._scope):
            raise closed()
        try:
            return self._pools[kind].urlopen(
                method,
                self._prefix + target,
                body,
                {**self._headers, **headers},
                retries=False,
                redirect=False,
                timeout=timeout,
                preload_content=whole,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            raise self._failure(error) from error
        except (AttributeError, ValueError) as error:
            # `close` took the socket from the running request.
            if is_cancelled(self._scope):
                raise closed() from error
            raise

    def _failure(self, error: Exception) -> Exception:
        if is_cancelled(self._scope):
            return closed()
        unsent = isinstance(error, NewConnectionError | ConnectTimeoutError)
        tls = isinstance(error, SSLError)
        late = isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError) and not (
            isinstance(error, NewConnectionError)
        )
        return NoAnswer(_reason(error), sent=not (unsent or tls), lasting=tls, timed_out=late)

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """A call of this thread: its logging is off, and a `close` in a signal handler that
        interrupts it is finished at its end.
        """
        self._inside.calls += 1
        _transport.calls += 1
        try:
            yield
        finally:
            _transport.calls -= 1
            self._inside.calls -= 1
            if self._inside.closes and not self._inside.calls:
                self._close_pools()

    def request(
        self,
        kind: PoolKind,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        partly: bool = False,
    ) -> Answer:
        limits = urllib3.Timeout(connect=min(self._connect, timeout), read=timeout)
        limit = self._limits.get(kind)
        with self._call(), limit.acquire(timeout) if limit else contextlib.nullcontext():
            response = self._open(kind, method, target, headers, body, limits, not partly)
            told = response.status, _lower(response.headers)
            if not partly:
                return Answer(*told, response.data)
            found, error = _read(response)
        if error is not None and is_cancelled(self._scope):
            raise closed() from error
        return Answer(*told, found, error is None)

    def stream(
        self, target: str, headers: Mapping[str, str], timeout: float, idle: float
    ) -> SyncStream | Answer:
        limits = urllib3.Timeout(connect=min(self._connect, timeout), read=max(timeout, idle))
        with self._call():
            response = self._open(PoolKind.STREAM, "GET", target, headers, None, limits, False)
            told = _lower(response.headers)
            if response.status == 200 and content_of(told) == EVENTS:
                return SyncStream(response, self._scope)
            try:
                # What another server sends may have no end.
                return Answer(response.status, told, response.read(PIECE))
            except (HTTPError, OSError) as error:
                raise self._failure(error) from error
            finally:
                response.close()

    def begin(self, call: Callable[[], T]) -> PendingCall[T]:
        with self._call(), self._starting:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(BACKGROUND_THREADS, "topics-prefetch")
            return BackgroundCall(self._executor.submit(call), self._scope)

    def sleep(self, seconds: float) -> None:
        over = OneShot()
        with waking(self._scope, over.set):
            if over.wait(seconds):
                raise closed()

    def close(self) -> None:
        self._scope.cancel()
        if self._pid != os.getpid():
            return
        if self._inside.calls:
            # A signal handler: the call that it interrupted may hold the locks of the pools.
            self._inside.closes = True
        else:
            self._close_pools()

    def _close_pools(self) -> None:
        self._inside.closes = False
        with self._starting:
            executor = self._executor
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools.values():
            pool.close()


class BackgroundCall(Generic[T]):
    """A call in a thread of the executor."""

    def __init__(self, call: Future[T], scope: CancelScope) -> None:
        self._call = call
        self._scope = scope

    def result(self) -> T:
        over = OneShot()
        self._call.add_done_callback(lambda _: over.set())
        with waking(self._scope, over.set):
            over.wait()
        if not self._call.done() or self._call.cancelled():
            raise closed()
        return self._call.result()


def _read(response: BaseHTTPResponse) -> tuple[bytes, Exception | None]:
    """Reads a body as far as possible; returns it with the error that ended it, if any."""
    pieces: list[bytes] = []
    try:
        while piece := response.read1(PIECE):
            pieces.append(piece)
    except (HTTPError, OSError, ValueError, AttributeError) as error:
        # A connection in the middle of a response cannot be reused.
        response.close()
        return b"".join(pieces), error
    response.release_conn()
    return b"".join(pieces), None


class Pieces(queue.Queue[bytes]):
    """A queue that a signal handler may put into while it interrupts a `get` of its thread."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.mutex = threading.RLock()  # type: ignore[assignment]
        self.not_empty = threading.Condition(self.mutex)
        self.not_full = threading.Condition(self.mutex)
        self.all_tasks_done = threading.Condition(self.mutex)


class SyncStream:
    """A response that a thread reads, so that `read` can have a timeout."""

    def __init__(self, response: BaseHTTPResponse, scope: CancelScope) -> None:
        self._pieces: queue.Queue[bytes] = Pieces(STREAM_BUFFER_PIECES)
        self._response = response
        self._scope = scope
        self._closed = threading.Event()
        self._over = False
        threading.Thread(
            target=_pump,
            args=(response, self._pieces, self._closed),
            name="topics-stream",
            daemon=True,
        ).start()
        whose = (os.getpid(), response, self._pieces, self._closed)
        self._end = weakref.finalize(self, _end, *whose)
        self._end.atexit = False

    def read(self, wait: float | None) -> bytes | None:
        if self._over:
            return b""
        try:
            piece = self._pieces.get(timeout=wait) if wait != 0 else self._pieces.get_nowait()
        except queue.Empty:
            return None
        if self._scope.is_cancelled:
            raise closed()
        # The next read returns the end as well.
        self._over = not piece
        return b"" if self._closed.is_set() else piece

    def close(self) -> None:
        self._end()


def _pump(response: BaseHTTPResponse, pieces: queue.Queue[bytes], over: threading.Event) -> None:
    """Reads to the end, or until the stream is closed; a broken connection is an end."""
    _transport.calls += 1
    try:
        while not over.is_set() and (piece := response.read1(PIECE)):
            while not over.is_set():
                with contextlib.suppress(queue.Full):
                    pieces.put(piece, timeout=1.0)
                    break
    except (HTTPError, OSError, ValueError, AttributeError):
        pass
    finally:
        # A connection in the middle of a response cannot be reused.
        response.close()
        while not over.is_set():
            with contextlib.suppress(queue.Full):
                pieces.put(b"", timeout=1.0)
                break


def _end(
    pid: int, response: BaseHTTPResponse, pieces: queue.Queue[bytes], over: threading.Event
) -> None:
    over.set()
    if pid != os.getpid():
        # The connection belongs to the parent process of this fork.
        return
    with contextlib.suppress(ValueError, RuntimeError, OSError):
        response.shutdown()
    with contextlib.suppress(queue.Full):
        pieces.put_nowait(b"")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
