"""Connections of the sync client, which another thread can interrupt at any point."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util.wait import wait_for_write

from ..client.closing import CancelScope
from .transport import (
    NoAnswer,
    Options,
    WakerKeys,
    add_waker,
    closed,
    is_cancelled,
    remove_wakers,
    waking,
)


class InterruptibleSemaphore:
    """A semaphore whose wait ends when a cancel scope is cancelled."""

    def __init__(self, most: int, scope: CancelScope) -> None:
        self._free = most
        self._scope = scope
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def acquire(self, timeout: float) -> Iterator[None]:
        """Waits for a permit; the end of the block releases it."""
        self._take(timeout)
        try:
            yield
        finally:
            self._release()

    def _take(self, timeout: float) -> None:
        with self._changed:
            if self._free > 0:
                self._free -= 1
                return
        with waking(self._scope, self._notify), self._changed:
            self._changed.wait_for(lambda: self._free > 0 or is_cancelled(self._scope), timeout)
            if is_cancelled(self._scope):
                raise closed()
            if self._free == 0:
                raise NoAnswer("all connections of the pool are in use", sent=False)
            self._free -= 1

    def _release(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


class InterruptibleConnection(HTTPConnection):
    """A connection whose socket is shut down when its request's scope is cancelled."""

    def __init__(self, *args: Any, scope: CancelScope, **how: Any) -> None:
        super().__init__(*args, **how)
        self._scope = scope
        self._dialling = contextlib.ExitStack()
        self._carrying: WakerKeys = ()

    def connect(self) -> None:
        with self._dialling:
            super().connect()
        # Suppresses urllib3's warning on each request: the user chose not to verify.
        self.is_verified = True

    def _new_conn(self) -> socket.socket:
        try:
            made = dial(self._dns_host, self.port, self.timeout, self._scope)
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"not connected within {self.timeout} s") from error
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error
        # The TLS handshake uses a socket object that is not reachable yet: shut down a duplicate.
        other = self._dialling.enter_context(made.dup())
        self._dialling.enter_context(waking(self._scope, lambda: wake(other)))
        return made

    def request(self, *args: Any, **how: Any) -> None:
        self._carrying = add_waker(self._scope, self._wake)
        super().request(*args, **how)

    def _wake(self) -> None:
        wake(self.sock)

    def detach(self) -> None:
        """Unregisters the waker of the finished request."""
        carrying, self._carrying = self._carrying, ()
        remove_wakers(carrying)

    def close(self) -> None:
        self.detach()
        super().close()


class InterruptibleTlsConnection(InterruptibleConnection, HTTPSConnection):
    """An interruptible connection over TLS."""


class Pool(urllib3.HTTPConnectionPool):
    """A pool of kept connections."""

    ConnectionCls = cast("Any", InterruptibleConnection)

    def _put_conn(self, connection: Any) -> None:
        if connection is not None:
            connection.detach()
        # Waiting requests may open more connections than are kept; urllib3 would log a warning.
        if connection is not None and self.pool is not None and self.pool.full():
            connection.close()
        else:
            super()._put_conn(connection)


class TlsPool(Pool, urllib3.HTTPSConnectionPool):
    """A pool of kept connections over TLS."""

    ConnectionCls = cast("Any", InterruptibleTlsConnection)


def pool_of(options: Options, scope: CancelScope) -> urllib3.HTTPConnectionPool:
    """The pool of a server, for calls of this scope."""
    how: dict[str, Any] = {"maxsize": options.pool, "retries": False, "scope": scope}
    context = options.tls()
    if context is None:
        return Pool(options.host, options.port, **how)
    how["assert_hostname"] = None if context.check_hostname else False
    how |= {"ssl_context": context, "cert_reqs": context.verify_mode}
    return TlsPool(options.host, options.port, **how)


def dial(host: str, port: int, timeout: float | None, scope: CancelScope) -> socket.socket:
    """Connects to the first address that accepts."""
    refused = OSError(f"the host name {host!r} has no address")
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    for family, kind, proto, _, address in found:
        made = socket.socket(family, kind, proto)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _connect(made, address, timeout, scope)
        except OSError as error:
            refused = error
            made.close()
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise refused


def _connect(made: socket.socket, address: Any, timeout: float | None, scope: CancelScope) -> None:
    if is_cancelled(scope):
        raise closed()
    made.setblocking(False)
    error = made.connect_ex(address)
    if error == errno.EINPROGRESS:
        # A shutdown has an effect only once the connect has begun.
        with waking(scope, lambda: wake(made)):
            if not wait_for_write(made, timeout):
                raise TimeoutError
        error = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))
    made.settimeout(timeout)


def wake(sock: socket.socket | None) -> None:
    """Shuts a socket down, which ends any wait on it."""
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
