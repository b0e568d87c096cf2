"""An open data directory, or a connection to a server."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .. import _core, settings
from ..errors import Forbidden, InvalidRequest
from . import show
from .backend import transactions_of
from .closing import Closing
from .queue import Queue
from .router import Router
from .topic import Topic
from .transaction import Transaction
from .values import RouterInfo, Start, TopicInfo, Verification
from .watch import Watch

if TYPE_CHECKING:
    from .backend import Backend
    from .read import OnGap

_open: weakref.WeakSet[Database] = weakref.WeakSet()


class Database(Closing):
    """Topics, in this process or of a server; thread-safe. Use it in a `with` block, or `close`
    it.
    """

    def __init__(self, backend: Backend, resolved: settings.Resolved | None = None) -> None:
        self._backend = backend
        self.settings = resolved
        """What it was opened with, and where each value came from."""
        _open.add(self)

    @property
    def path(self) -> str:
        """The data directory, or the URL of the server."""
        return self._backend.path

    @property
    def closed(self) -> bool:
        """Whether it is closed, here or because this process is a fork."""
        return self._backend.closed

    def topic(self, name: str, **config: Any) -> Topic:
        """A handle. The config applies when the topic is created, by a write at the latest."""
        return Topic(self._backend, name, config)

    def queue(self, /, name: str, **config: Any) -> Queue:
        """A handle of a queue, which is created if it is not there."""
        queue = Queue(self._backend, name, config)
        try:
            queue.create()
        except Forbidden:
            # Only an administrator's key makes one; others use what is there.
            if queue.state().type != "queue":
                raise
        return queue

    def queues(self, prefix: str = "") -> Iterator[TopicInfo]:
        """The queues whose names begin with `prefix`, in name order."""
        return (info for info in self.topics(prefix) if info.type == "queue")

    def redrive(self, /, topic: str, **how: Any) -> int:
        """Moves the dead letters of a topic back to where they came from; see `Queue.redrive`."""
        return Queue(self._backend, topic, {}).redrive(**how)

    def __getitem__(self, name: str) -> Topic:
        return self.topic(name)

    def topics(self, prefix: str = "") -> Iterator[TopicInfo]:
        """The topics whose names begin with `prefix`, in name order."""
        after: str | None = None
        while True:
            page = json.loads(self._backend.list(prefix, after, 1000))["topics"]
            yield from map(TopicInfo.from_fields, page)
            if len(page) < 1000:
                return
            after = page[-1]["topic"]

    def watch(
        self,
        topics: str | Sequence[str] | Mapping[str, int | Start],
        *,
        node: str | Sequence[str] | None = None,
        match: str | None = None,
        events: bool = False,
        gaps: OnGap = "yield",
        strong: bool = False,
        lenient: bool = False,
        limit: int = 256,
    ) -> Watch:
        """Follows topics: an iterator that waits for what comes next.

        `topics` maps names to cursors, `EARLIEST` or `TAIL`; names alone begin at the tail. A name
        that ends with `*` is a pattern: topics created later join from their start. Records of the
        nodes named are skipped, and those without a tag that `match` selects. `events` adds
        `CaughtUp` and `TopicDeleted`. `strong` waits until records are synced, whatever their
        class. Unknown topics are `NotFound`, unless `lenient`: then they join when they are
        created.
        """
        return Watch(self._backend, topics, node, match, events, gaps, strong, lenient, limit)

    def router(
        self,
        name: str,
        source: str | None = None,
        dest: str | None = None,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        match: str | None = None,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once",
    ) -> Router:
        """A handle. With `source` and `dest`, creates the router or updates it: what is written to
        the source from now on is copied to the destination, those records whose tag `match`
        selects, if it is given.
        """
        if guarantee not in ("at_least_once", "exactly_once"):
            raise InvalidRequest(
                f"guarantee must be 'at_least_once' or 'exactly_once', not {guarantee!r}"
            )
        if (source is None) != (dest is None):
            raise InvalidRequest(
                "a router needs both source and dest: give both, or neither for a handle"
            )
        if source is not None and dest is not None:
            self._backend.create_router(
                name,
                source,
                dest,
                preserve_node=preserve_node,
                preserve_tag=preserve_tag,
                match=match,
                create_dest=create_dest,
                allow_cycle=allow_cycle,
                exactly_once=guarantee == "exactly_once",
            )
        return Router(self._backend, name)

    def routers(self, prefix: str = "") -> list[RouterInfo]:
        """The routers whose names begin with `prefix`, in name order."""
        found = json.loads(self._backend.routers(prefix))["routers"]
        return [RouterInfo.from_fields(fields) for fields in found]

    def transaction(
        self, writer: str | None = None, epoch: int | None = None, *, key: str | None = None
    ) -> Transaction:
        """A block at whose end rows are appended, cursors moved and jobs acked: all of it,
        durably, or nothing. An exception in the block aborts.

        A `writer` has epochs that rise: the last one again changes nothing and answers as the first
        time, an older one is a `Conflict`, none given is the next. Without a writer, an idempotency
        `key` does the same for two minutes. Where the disk failed on the way (`Unavailable`),
        repeat: what was decided is finished, and not done twice.
        """
        return Transaction(transactions_of(self._backend), writer, epoch, key)

    def forget_writer(self, writer: str) -> bool:
        """Forgets a transaction writer: its next commit may have any epoch, and what it has staged
        is given up. What it published stays. False when there is none.
        """
        return transactions_of(self._backend).forget(writer)

    def sync(self) -> None:
        """Returns when everything acked before is durable."""
        self._backend.sync()

    def checkpoint(self) -> None:
        """Moves what the log holds into segments."""
        self._backend.checkpoint()

    def verify(self) -> Verification:
        """Checks every byte of the directory, and that every live record can be read."""
        return Verification.from_json(self._backend.verify())

    def metrics(self) -> Mapping[str, Any]:
        """What the engine counts."""
        found: dict[str, Any] = json.loads(self._backend.metrics(json=True))
        return found

    def scan(self, topic: str, **asked: Any) -> Any:
        """A range as an Arrow stream, for `pyarrow.RecordBatchReader.from_stream`, `polars` and the
        like: `from_seq`, `to_seq`, `columns` and the other fields of `POST /v0/topics/:t/scan`.
        """
        return self._backend.scan_range(topic, json.dumps(asked).encode())

    def split(self, topic: str, **asked: Any) -> dict[str, Any]:
        """A range in parts of about one size, from the index alone: the fields and the answer of
        `POST /v0/topics/:t/split`.
        """
        found: dict[str, Any] = json.loads(self._backend.split(topic, json.dumps(asked).encode()))
        return found

    def close(self) -> None:
        """Stages nothing more, syncs, wakes every waiter with `Closed`. Idempotent."""
        self._backend.close()
        _open.discard(self)

    def __repr__(self) -> str:
        return show.database_text(self)

    def _repr_html_(self) -> str:
        return show.database_html(self)


def open_database(
    path: str | os.PathLike[str] | None = None, *, read_only: bool = False, **given: Any
) -> Database:
    """Opens a data directory, creating it when missing.

    `read_only` opens one that is there and that nobody writes to, in whatever state it was left.
    Nothing in it changes, every write is refused, and other processes may read it at the same time.

    `path` is the setting `data_dir`. Settings are arguments over `TOPICS_*` over `topics.toml` over
    defaults; `.settings` of the result says what holds and why.
    """
    if path is not None:
        given["data_dir"] = os.fspath(path)
    resolved = settings.resolve(given)
    engine = _core.Engine.open(str(resolved["data_dir"]), resolved.native(), read_only)
    return Database(engine, resolved)


def verify(path: str | os.PathLike[str]) -> Verification:
    """Checks every byte of a data directory, closed or open. Nothing is changed."""
    return Verification.from_json(_core.verify(os.fspath(path)))


@atexit.register
def close_all() -> None:
    """The interpreter ends."""
    for db in list(_open):
        # There is nobody left to tell; the log has what was acked.
        with contextlib.suppress(Exception):
            db.close()
