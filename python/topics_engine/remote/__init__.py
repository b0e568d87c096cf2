"""The client of a server: the same handles over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..client.database import Database
from ..extras import extra
from .transport import Options, Verify, options_of

if TYPE_CHECKING:
    from ..client.arguments import Duration

__all__ = ["Options", "Verify", "connect", "connect_async"]


def connect(
    url: str,
    api_key: str | None = None,
    *,
    deadline: Duration = 30.0,
    timeout: Duration = 10.0,
    connect_timeout: Duration = 5.0,
    pool: int = 16,
    heartbeat: Duration = 5.0,
    verify: Verify = True,
) -> Database:
    """Connects to a server and returns the handles that `te.open` returns. Sends nothing yet.

    A call that fails on the way is repeated, with growing pauses, where a repeat is safe.

    Args:
        url: the server, for example `"http://127.0.0.1:4000"`.
        api_key: it is sent with every request.
        deadline: how long a call may take until it succeeds or raises: seconds, a `timedelta`, or
            text like `"30s"` (default: 30 seconds).
        timeout: how long one attempt may go without a byte (default: 10 seconds), in addition to
            what the call itself waits.
        connect_timeout: how long it may take to establish a connection (default: 5 seconds).
        pool: connections that are kept of each kind of request (default: 16).
        heartbeat: the time between heartbeats of a stream (default: 5 seconds); a stream without a
            byte for two and a half times as long is reopened.
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

    options = options_of(
        url,
        api_key,
        deadline=deadline,
        timeout=timeout,
        connect_timeout=connect_timeout,
        pool=pool,
        heartbeat=heartbeat,
        verify=verify,
    )
    return Database(HttpBackend(SyncTransport(options), options, may_block=True))


def connect_async(url: str, api_key: str | None, **given: Any) -> Database:
    """The same over asyncio: calls run in greenlets of tasks, and `aio` wraps the handles."""
    with extra("client", "aio.connect"):
        from .async_transport import AsyncTransport
        from .backend import HttpBackend

    options = options_of(url, api_key, **given)
    return Database(HttpBackend(AsyncTransport(options), options, may_block=False))
