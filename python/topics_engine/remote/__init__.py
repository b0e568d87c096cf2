"""The client of a server: the same handles over HTTP."""

from __future__ import annotations

from typing import Any

from ..client.database import Database
from ..extras import extra
from .transport import Options, Verify

__all__ = ["Options", "Verify", "connect", "connect_async"]


def connect(
    url: str,
    api_key: str | None = None,
    *,
    deadline: float = 30.0,
    timeout: float = 10.0,
    connect_timeout: float = 5.0,
    pool: int = 16,
    heartbeat: float = 5.0,
    verify: Verify = True,
) -> Database:
    """Connects to a server and returns the handles that `te.open` returns. Sends nothing yet.

    A call that fails on the way is repeated, with growing pauses, where a repeat is safe.

    Args:
        url: the server, for example `"http://127.0.0.1:4000"`.
        api_key: it is sent with every request.
        deadline: seconds within which a call succeeds or raises (default: 30).
        timeout: seconds without a byte after which one attempt fails (default: 10), in addition
            to what the call itself waits.
        connect_timeout: seconds to establish a connection (default: 5).
        pool: connections that are kept of each kind of request (default: 16).
        heartbeat: seconds between heartbeats of a stream (default: 5); a stream without a byte
            for two and a half times as long is reopened.
        verify: how to check the TLS certificate: True (default), False, a file of certificate
            authorities, or an `ssl.SSLContext`.

    Raises:
        InvalidRequest: an argument is wrong.
        ModuleNotFoundError: the extra is not installed (`pip install 'topics-engine[client]'`).

    Example:
        ```python
        with te.connect("http://127.0.0.1:4000", api_key="secret") as db:
            db.topic("orders").append({"id": 1})
        ```
    """
    with extra("client", "connect"):
        from .backend import HttpBackend
        from .sync_transport import SyncTransport

    options = Options(url, api_key, deadline, timeout, connect_timeout, pool, heartbeat, verify)
    return Database(HttpBackend(SyncTransport(options), options, may_block=True))


def connect_async(url: str, api_key: str | None, **given: Any) -> Database:
    """The same over asyncio: calls run in greenlets of tasks, and `aio` wraps the handles."""
    with extra("client", "aio.connect"):
        from .async_transport import AsyncTransport
        from .backend import HttpBackend

    options = Options(url, api_key, **given)
    return Database(HttpBackend(AsyncTransport(options), options, may_block=False))
