"""The wire of the sync client: urllib3, for any number of threads."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    EmptyPoolError,
    HTTPError,
    NewConnectionError,
    SSLError,
)

from .wire import Answer, Lane, NoAnswer, Options, closed, forked

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

    from .ahead import Begun

PIECE = 1 << 16
# Pieces that are read ahead of who takes them; then the server is left waiting.
AHEAD = 64
# Threads that fetch pages ahead.
BESIDE = 4

T = TypeVar("T")


class ThreadWire:
    """Keep-alive connections by lane; each call blocks its thread, and hears Ctrl-C."""

    def __init__(self, options: Options) -> None:
        self._prefix = options.prefix
        self._headers = options.headers
        self._connect = options.connect_timeout
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._beside: ThreadPoolExecutor | None = None
        self._live: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pools = {lane: self._pool(lane, options) for lane in Lane}

    def _pool(self, lane: Lane, options: Options) -> urllib3.HTTPConnectionPool:
        context = options.tls()
        # The short ones take turns; nobody waits for one that waits.
        common: dict[str, Any] = {
            "port": options.port,
            "maxsize": options.pool,
            "block": lane in (Lane.HOT, Lane.PLAIN),
            "retries": False,
        }
        kind: Any = urllib3.HTTPConnectionPool
        if context is not None:
            kind = urllib3.HTTPSConnectionPool
            common |= {
                "ssl_context": context,
                "assert_hostname": None if context.check_hostname else False,
                "cert_reqs": context.verify_mode,
            }

        class Pool(kind):  # type: ignore[misc]
            def _put_conn(self, connection: Any) -> None:
                # More than are kept is what many waits come to: it is not warned of.
                if connection is not None and self.pool is not None and self.pool.full():
                    connection.close()
                else:
                    super()._put_conn(connection)

        pool: urllib3.HTTPConnectionPool = Pool(options.host, **common)
        base: Any = HTTPConnection if context is None else HTTPSConnection
        enter, ended = self._enter, self._ended

        class Connection(base):  # type: ignore[misc]
            def connect(self) -> None:
                super().connect()
                # Not to be verified was asked for: that is not warned of at each request.
                self.is_verified = True
                enter(self)
                if ended.is_set():
                    self.close()
                    raise closed()

        pool.ConnectionCls = cast("Any", Connection)
        return pool

    def _enter(self, connection: Any) -> None:
        with self._lock:
            self._live.add(connection)

    def _open(
        self,
        lane: Lane,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: urllib3.Timeout,
        whole: bool,
    ) -> BaseHTTPResponse:
        if self._pid != os.getpid():
            raise forked()
        if self._ended.is_set():
            raise closed()
        try:
            return self._pools[lane].urlopen(
                method,
                self._prefix + target,
                body,
                {**self._headers, **headers},
                retries=False,
                redirect=False,
                timeout=timeout,
                pool_timeout=max(1, round(timeout.read_timeout or 1)),
                preload_content=whole,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            raise self._failure(error) from error
        except (AttributeError, ValueError) as error:
            # Its socket was taken from a request that was being made.
            if self._ended.is_set():
                raise closed() from error
            raise

    def _failure(self, error: Exception) -> Exception:
        if self._ended.is_set():
            return closed()
        unsent = isinstance(error, NewConnectionError | ConnectTimeoutError | EmptyPoolError)
        tls = isinstance(error, SSLError)
        return NoAnswer(str(error), sent=not (unsent or tls), lasting=tls)

    def request(
        self,
        lane: Lane,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> Answer:
        limits = urllib3.Timeout(connect=min(self._connect, timeout), read=timeout)
        response = self._open(lane, method, target, headers, body, limits, True)
        return Answer(response.status, _lower(response.headers), response.data)

    def stream(
        self, target: str, headers: Mapping[str, str], timeout: float, idle: float
    ) -> ThreadStream | Answer:
        limits = urllib3.Timeout(connect=min(self._connect, timeout), read=max(timeout, idle))
        response = self._open(Lane.STREAM, "GET", target, headers, None, limits, False)
        if response.status != 200:
            try:
                return Answer(response.status, _lower(response.headers), response.read())
            except (HTTPError, OSError) as error:
                raise self._failure(error) from error
        return ThreadStream(response, self._ended)

    def begin(self, call: Callable[[], T]) -> Begun[T]:
        with self._lock:
            if self._beside is None:
                self._beside = ThreadPoolExecutor(BESIDE, "topics-ahead")
            return self._beside.submit(call)

    def sleep(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise closed()

    def close(self) -> None:
        self._ended.set()
        if self._pid != os.getpid():
            return
        with self._lock:
            live = list(self._live)
            beside = self._beside
        if beside is not None:
            beside.shutdown(wait=False, cancel_futures=True)
        for connection in live:
            wake(connection.sock)
        for pool in self._pools.values():
            pool.close()


class ThreadStream:
    """A response that a thread reads, so that who takes from it can wait for a time only."""

    def __init__(self, response: BaseHTTPResponse, ended: threading.Event) -> None:
        self._pieces: queue.Queue[bytes] = queue.Queue(AHEAD)
        self._response = response
        self._ended = ended
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
        if self._ended.is_set():
            raise closed()
        # Whoever reads next meets the end as well.
        self._over = not piece
        return b"" if self._closed.is_set() else piece

    def close(self) -> None:
        self._end()


def _pump(response: BaseHTTPResponse, pieces: queue.Queue[bytes], over: threading.Event) -> None:
    """Reads to the end, or until nobody takes it; a broken connection is an end."""
    try:
        while not over.is_set() and (piece := response.read1(PIECE)):
            while not over.is_set():
                with contextlib.suppress(queue.Full):
                    pieces.put(piece, timeout=1.0)
                    break
    except (HTTPError, OSError, ValueError, AttributeError):
        pass
    finally:
        # A connection in the middle of a response carries no other.
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
        # The connection goes on in the process that this is a fork of.
        return
    with contextlib.suppress(ValueError, RuntimeError, OSError):
        response.shutdown()
    with contextlib.suppress(queue.Full):
        pieces.put_nowait(b"")


def wake(sock: socket.socket | None) -> None:
    """Ends what a thread waits for on a connection."""
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
