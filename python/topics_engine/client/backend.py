"""The backend that the handles call: verbs over a transport.

A verb is a request, which the engine of this process and a server answer with the same bytes.
Writes, reads, claims, watches and scans are apart: `client/embedded.py` has them of the native
module, `remote/` those of HTTP.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .encoding import matcher
from .page import body_of_rows
from .request import JSON, TEXT, Caller, encode_json, without_none

if TYPE_CHECKING:
    from .._core import _Acked as Acked
    from .._core import _Acks, _Committed, _Jobs, _TxnRows, _Verbs
    from .._core import _NewRow as NewRow
    from .._core import _Page as Page
    from .._core import _Source as Source
    from .._core import _Stream as Stream
    from .._core import _WatchEvent as WatchEvent
    from .._core import _WatchStart as WatchStart
    from .consumer_verbs import ConsumerVerbs
    from .jobs import QueueVerbs

    class JobStream(Protocol):
        """A stream of jobs, like `_core.Work`."""

        def next(self, wait: float = 0.0) -> _Jobs | None: ...
        def close(self) -> None: ...

else:
    # A class that names its methods here would hide the native ones of an instance.
    _Verbs = object

PAGE_SIZE = 1000
"""Entries of a page of a list."""


class Backend(_Verbs):
    """The verbs of an embedded engine or of a server."""

    caller: Caller
    is_remote: ClassVar[bool]
    """Whether verbs wait for a server instead of the local disk."""

    def answer(self, verb: str, name: str = "", body: Any = None, **how: Any) -> dict[str, Any]:
        """The answer to a request with a JSON body."""
        raw = None if body is None else encode_json(body)
        found: dict[str, Any] = json.loads(self.caller.call(verb, name, raw, **how))
        return found

    def _pages(
        self, verb: str, member: str, name: str = "", prefix: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The entries of a list, fetched a page at a time."""
        query = {"prefix": prefix or None, "page_size": PAGE_SIZE}
        while True:
            page = self.answer(verb, name, query=query)
            yield from page[member]
            if (cursor := page.get("next_cursor")) is None:
                return
            query["cursor"] = cursor

    def create(self, topic: str, config: bytes | None = None, create: bool | None = None) -> bytes:
        """Creates a topic or updates the named fields. With `create`, refuses a topic that exists
        (true), or one that does not (false).
        """
        return self.caller.call("create", topic, config or b"{}", query={"create": create})

    def state(self, topic: str) -> bytes:
        """State and config of a topic."""
        return self.caller.call("state", topic, query={"touch": False})

    def topics(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Topics in name order."""
        return self._pages("list", "topics", prefix=prefix)

    def delete_topic(self, topic: str, if_empty: bool = False) -> bool:
        """Whether there was one."""
        answer = self.answer("drop", topic, query={"if_empty": if_empty or None})
        return bool(answer["deleted"])

    def seek(self, topic: str, ts: int) -> int:
        """The cursor just before the first record at or after `ts` (epoch ms)."""
        return int(self.answer("seek", topic, {"ts": ts})["seq"])

    def delete(
        self,
        topic: str,
        before_seq: int | None = None,
        match: str | None = None,
        seqs: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Deletes a range, or single records."""
        fields = without_none(before_seq=before_seq, match=matcher(match), seqs=seqs)
        return self.answer("delete", topic, fields)

    def trim(self, topic: str, count: int) -> dict[str, Any]:
        """Deletes all but the newest records."""
        return self.answer("trim", topic, {"to_count": count})

    def split(self, topic: str, request: bytes) -> bytes:
        """Splits of a range; request and answer are those of `POST /v0/topics/:t/split`."""
        return self.caller.call("split", topic, request)

    def create_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        match: str | None = None,
        exactly_once: bool = False,
        **options: bool,
    ) -> bool:
        """Creates or updates a router; whether it was created."""
        guarantee = "exactly_once" if exactly_once else "at_least_once"
        fields = without_none(source=source, dest=dest, filter=matcher(match), guarantee=guarantee)
        return bool(self.answer("router_put", router, fields | options)["created"])

    def router(self, router: str) -> dict[str, Any]:
        """The state of a router."""
        return self.answer("router", router)

    def routers(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Routers in name order."""
        return self._pages("routers", "routers", prefix=prefix)

    def delete_router(self, router: str) -> bool:
        """Whether there was one."""
        return bool(self.answer("router_drop", router)["deleted"])

    def consumers(self, topic: str = "") -> Iterator[dict[str, Any]]:
        """The consumers of one topic, or of all, in name order."""
        return self._pages("consumers", "consumers", topic)

    def delete_consumer(self, topic: str, name: str) -> bool:
        """Whether there was one."""
        return bool(self.answer("consumer_drop", topic, part=name)["deleted"])

    def sync(self, topic: str | None = None) -> None:
        """Returns when everything acked before (of one topic) is durable."""
        # A lost answer may have reported a loss, which is reported once: a repeat would hide it.
        self.answer("sync", body=without_none(topic=topic), long=True, repeatable=False)

    def checkpoint(self) -> None:
        """Copies the records of the log into segments."""
        self.answer("checkpoint", long=True)

    def backup(self, dir: str | os.PathLike[str]) -> bytes:
        """Copies the engine to a directory that is missing or empty."""
        # A repeat of a backup that was made finds its directory in use.
        body = encode_json({"dir": os.fspath(dir)})
        return self.caller.call("backup", body=body, long=True, repeatable=False)

    def verify(self) -> bytes:
        """Reads and checks every live record."""
        return self.caller.call("verify", long=True)

    def metrics(self, json: bool = False) -> bytes:
        """Prometheus text, or JSON."""
        return self.caller.call("metrics", accept=JSON if json else TEXT)

    def append_table(
        self,
        topic: str,
        config: bytes | None,
        table: Any,
        tag: str | None,
        node: str | None,
        key: str | None,
    ) -> Acked:
        """Appends the rows of an Arrow table."""
        raise NotImplementedError

    def scan(self, topic: str, request: Mapping[str, Any], limit: int | None = None) -> Stream:
        """A range as an Arrow stream; `request` is the body of `POST /v0/topics/:t/scan`. No more
        than `limit` records are used.
        """
        # A native stream reads what is taken of it.
        return self.scan_range(topic, json.dumps(request).encode())

    def queue(self, name: str) -> QueueVerbs:
        """The jobs of a queue."""
        raise NotImplementedError

    def consumer(
        self, topic: str, name: str, mode: str | None, start: str, auto_commit: bool
    ) -> ConsumerVerbs:
        """A consumer, which is created if it does not exist."""
        raise NotImplementedError

    def transact(
        self,
        rows: Sequence[_TxnRows],
        *,
        writer: str | None = None,
        epoch: int | None = None,
        key: str | None = None,
        heads: Mapping[str, int],
        commits: Sequence[tuple[str, str, int, str | None]] = (),
        acks: Sequence[_Acks] = (),
    ) -> _Committed:
        """Commits rows, cursors and acks together, if the heads are these."""
        fields: dict[str, Any] = without_none(writer=writer, epoch=epoch, idempotency_key=key)
        fields["expect_heads"] = dict(heads)
        fields["commits"] = [
            without_none(topic=topic, consumer=consumer, seq=seq, reader=reader)
            for topic, consumer, seq, reader in commits
        ]
        fields["acks"] = [
            without_none(queue=queue, node=node, seqs=seqs, lease_ids=ids)
            for queue, node, seqs, ids in acks
        ]
        appends = b",".join(_append(*group) for group in rows)
        body = b'{"appends":[%b],%b' % (appends, encode_json(fields)[1:])
        answer = json.loads(self.caller.call("txn", body=body))
        topics = [
            (name, at["topic_id"], at["first_seq"], at["last_seq"])
            for name, at in answer["topics"].items()
        ]
        return answer.get("epoch", 0), answer["deduped"], topics

    def forget_writer(self, writer: str) -> bool:
        """Deletes the state of a writer; whether there was one."""
        return bool(self.answer("txn_forget", part=writer)["forgotten"])


def _append(topic: str, rows: Sequence[NewRow], node: str | None) -> bytes:
    fields = encode_json(without_none(topic=topic, node=node))[1:-1] + b","
    return body_of_rows(rows, fields)


call_timeout: ContextVar[float] = ContextVar("call_timeout", default=math.inf)
"""Seconds that a call to a server may take, below its deadline. `repr` sets it, so that showing a
handle does not block on an unreachable server.
"""


class RemoteBackend:
    """Marks a backend, or a part of one, whose verbs wait for a server."""

    __slots__ = ()


__all__ = [
    "Acked",
    "Backend",
    "JobStream",
    "NewRow",
    "Page",
    "RemoteBackend",
    "Source",
    "Stream",
    "WatchEvent",
    "WatchStart",
    "call_timeout",
]
