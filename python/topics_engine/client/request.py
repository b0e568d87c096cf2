"""Requests of verbs: what a transport takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

JSON = "application/json"
TEXT = "text/plain"

PATHS = {
    "ack": ("POST", "/v0/topics/{name}/ack"),
    "backup": ("POST", "/v0/admin/backup"),
    "checkpoint": ("POST", "/v0/admin/checkpoint"),
    "claim": ("POST", "/v0/topics/{name}/claim"),
    "consumer": ("GET", "/v0/topics/{name}/consumers/{part}"),
    "consumer_commit": ("POST", "/v0/topics/{name}/consumers/{part}/commit"),
    "consumer_drop": ("DELETE", "/v0/topics/{name}/consumers/{part}"),
    "consumer_put": ("PUT", "/v0/topics/{name}/consumers/{part}"),
    "consumer_read": ("POST", "/v0/topics/{name}/consumers/{part}/read"),
    "consumer_seek": ("POST", "/v0/topics/{name}/consumers/{part}/seek"),
    "consumers": ("GET", "/v0/topics/{name}/consumers"),
    "create": ("PUT", "/v0/topics/{name}"),
    "delete": ("POST", "/v0/topics/{name}/delete"),
    "diff": ("POST", "/v0/topics/{name}/diff"),
    "drop": ("DELETE", "/v0/topics/{name}"),
    "extend": ("POST", "/v0/topics/{name}/extend"),
    "health": ("GET", "/v0/health"),
    "jobs": ("GET", "/v0/topics/{name}/jobs"),
    "jobs_promote": ("POST", "/v0/topics/{name}/promote"),
    "jobs_remove": ("POST", "/v0/topics/{name}/remove"),
    "list": ("GET", "/v0/topics"),
    "metrics": ("GET", "/v0/metrics"),
    "nack": ("POST", "/v0/topics/{name}/nack"),
    "ready": ("GET", "/v0/ready"),
    "redrive": ("POST", "/v0/topics/{name}/redrive"),
    "release": ("POST", "/v0/topics/{name}/release"),
    "router": ("GET", "/v0/routers/{name}"),
    "router_drop": ("DELETE", "/v0/routers/{name}"),
    "router_put": ("PUT", "/v0/routers/{name}"),
    "routers": ("GET", "/v0/routers"),
    "scan": ("POST", "/v0/topics/{name}/scan"),
    "seek": ("POST", "/v0/topics/{name}/seek"),
    "split": ("POST", "/v0/topics/{name}/split"),
    "state": ("GET", "/v0/topics/{name}"),
    "sync": ("POST", "/v0/sync"),
    "txn": ("POST", "/v0/txn"),
    "txn_forget": ("DELETE", "/v0/txn/{part}"),
    "txn_writer": ("GET", "/v0/txn/{part}"),
    "verify": ("POST", "/v0/admin/verify"),
    "watch": ("GET", "/v0/watch/{part}"),
    "watch_create": ("POST", "/v0/watch"),
    "watch_end": ("DELETE", "/v0/watch/{part}"),
    "work": ("GET", "/v0/topics/{name}/work"),
    "write": ("POST", "/v0/topics/{name}"),
}
"""Method and path of the verbs that clients call: `name` is a topic or a router, `part` a consumer,
a watch session or a writer.
"""


class Caller(Protocol):
    """A transport of requests: to the engine of this process, or to a server."""

    def call(
        self,
        verb: str,
        name: str = "",
        body: bytes | None = None,
        *,
        part: str = "",
        query: Mapping[str, Any] | None = None,
        accept: str = JSON,
        long: bool = False,
        repeatable: bool = True,
    ) -> bytes:
        """Sends a request and returns the body of the answer; raises its error.

        Args:
            verb: a key of `PATHS`.
            name: the topic or the router.
            body: the body, JSON unless the verb says otherwise.
            part: the consumer, the watch session or the writer.
            query: parameters; those that are `None` are not sent.
            accept: the format of the answer.
            long: the call may take as long as it needs.
            repeatable: executing it twice does no harm.
        """


def path_of(verb: str, name: str = "", part: str = "") -> tuple[str, str]:
    """Method and path of a verb. A list without a name is of all topics."""
    from urllib.parse import quote

    method, path = PATHS[verb]
    if not name:
        path = path.replace("/topics/{name}", "")
    return method, path.format(name=quote(name, safe=""), part=quote(part, safe=""))


def encode_query(query: Mapping[str, Any] | None) -> str:
    """The parameters of a request that are not `None`."""
    given = {name: _word(value) for name, value in (query or {}).items() if value is not None}
    if all(word.isascii() and word.isalnum() for word in given.values()):
        # What most requests have; a program that has no others does not load `urllib`.
        return "&".join(f"{name}={word}" for name, word in given.items())
    from urllib.parse import urlencode

    return urlencode(given)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def encode_json(body: Any) -> bytes:
    """Encodes a JSON body."""
    return json.dumps(body, separators=(",", ":")).encode()


def without_none(**fields: Any) -> dict[str, Any]:
    """The fields that are not `None`."""
    return {name: value for name, value in fields.items() if value is not None}
