"""The handle of an open data directory, or of a connection to a server."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from .. import _core, settings
from ..errors import InvalidRequest, NotFound
from . import arguments, show
from .closing import Closing
from .consumer import ConsumerInfo, infos_of
from .embedded import EmbeddedBackend
from .queue import Queue
from .ranges import scan_request, split_request, splits_of
from .read import with_lost_range
from .router import Router
from .topic import Topic, declare
from .transaction import Transaction
from .values import Backup, Record, Restored, RouterInfo, Split, TopicInfo, Verification
from .watch import Watch

if TYPE_CHECKING:
    from datetime import datetime

    from ..options import QueueConfig, ScanOptions, Settings, SplitOptions, TopicConfig
    from .backend import Backend
    from .read import Item, OnGap, WithoutGaps
    from .transaction import Named
    from .watch import Event, Watched, WatchOptions

_open: weakref.WeakSet[Backend] = weakref.WeakSet()


class Database(Closing):
    """Topics of an embedded engine or of a server.

    Made by `te.open` and `te.connect`. Use it in a `with` block, or call `close`. Thread-safe.
    """

    def __init__(
        self,
        backend: Backend,
        resolved: settings.Resolved | None = None,
    ) -> None:
        self._backend = backend
        self.settings = resolved or settings.Resolved({}, {})
        """Its settings, each with its source; empty for a connection, whose server has its own."""
        _open.add(backend)

    @property
    def path(self) -> str:
        """The data directory, or the URL of the server."""
        return self._backend.path

    @property
    def closed(self) -> bool:
        """Whether it is closed, or belongs to the parent process of a fork."""
        return self._backend.closed

    def topic(self, /, name: str, **options: Unpack[TopicConfig]) -> Topic:
        """Returns a handle of a topic. Sends nothing.

        Args:
            name: the name of the topic.
            options: topic options, for example `durability="fsync"`. They apply when the topic is
                created, by the first write, by `create` or by `ensure`, and change nothing later.

        Example:
            ```python
            orders = db.topic("orders", durability="fsync", ttl="1d")
            ```
        """
        return Topic(self._backend, name, options)

    def queue(self, /, name: str, **options: Unpack[QueueConfig]) -> Queue:
        """Returns a handle of a queue, and creates the queue if it does not exist. An existing one
        stays as it is: `ensure` compares its options, `configure` changes them.

        Args:
            name: the name of the queue.
            options: topic options, for example `max_deliveries=5, dead_letter="jobs.dead"`. They
                apply when the queue is created.

        Raises:
            Conflict: a topic of this name exists that is no queue, or has another `durability`.

        Example:
            ```python
            jobs = db.queue("jobs", lease="30s")
            ```
        """
        queue = Queue(self._backend, name, options)
        queue._declare()
        return queue

    def queues(self, prefix: str = "") -> Iterator[TopicInfo]:
        """The queues whose names begin with `prefix`, in name order.

        Args:
            prefix: only names that begin with it (default: all).
        """
        return (info for info in self.topics(prefix) if info.type == "queue")

    def redrive(
        self,
        /,
        topic: str,
        *,
        to: str | None = None,
        tag: str | None = None,
        seqs: Sequence[int] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Moves the dead letters of a topic back to their queues.

        Args:
            topic: the topic of the dead letters, or a queue with dead jobs.
            to: a queue to move them to (default: where each came from).
            tag: only records with this tag; `"eu:*"` selects tags by prefix.
            seqs: only these records.
            limit: most records to move (default: all).
            dry_run: only count them (default: False).

        Returns:
            How many records were moved.

        Raises:
            NotFound: the topic, or a queue to move to, does not exist.

        Example:
            ```python
            db.redrive("jobs.dead", limit=100)
            ```
        """
        queue = Queue(self._backend, topic, {})
        return queue.redrive(to=to, tag=tag, seqs=seqs, limit=limit, dry_run=dry_run)

    def __getitem__(self, name: str) -> Topic:
        return self.topic(name)

    def __contains__(self, name: object) -> bool:
        """Whether a topic of this name exists."""
        if not isinstance(name, str) or not arguments.is_name(name):
            return False
        try:
            self._backend.state(name)
        except NotFound:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        """The names of the topics, in order."""
        return (info.topic for info in self.topics())

    def __len__(self) -> int:
        """The number of topics."""
        return sum(1 for _ in self.topics())

    def __bool__(self) -> bool:
        """A handle is true, however many topics there are."""
        return True

    def consumers(self) -> list[ConsumerInfo]:
        """The consumers of all topics, in the order of topics and names."""
        return infos_of(self._backend.consumers())

    def topics(self, prefix: str = "") -> Iterator[TopicInfo]:
        """The topics whose names begin with `prefix`, in name order, fetched in pages of 1000.

        Args:
            prefix: only names that begin with it (default: all).

        Example:
            ```python
            names = [info.topic for info in db.topics("orders.")]
            ```
        """
        found = self._backend.topics(arguments.text("prefix", prefix))
        yield from map(TopicInfo.from_fields, found)

    @overload
    def watch(
        self,
        topics: Watched,
        *,
        events: Literal[False] = False,
        gaps: WithoutGaps,
        **options: Unpack[WatchOptions],
    ) -> Watch[Record]: ...
    @overload
    def watch(
        self,
        topics: Watched,
        *,
        events: Literal[False] = False,
        gaps: OnGap = "yield",
        **options: Unpack[WatchOptions],
    ) -> Watch[Item]: ...
    @overload
    def watch(
        self,
        topics: Watched,
        *,
        events: bool,
        gaps: OnGap = "yield",
        **options: Unpack[WatchOptions],
    ) -> Watch[Event]: ...
    def watch(
        self,
        topics: Watched,
        *,
        exclude_nodes: str | Sequence[str] | None = None,
        tag: str | None = None,
        events: bool = False,
        gaps: OnGap = "yield",
        strong: bool = False,
        lenient: bool = False,
        limit: int = 256,
    ) -> Watch[Any]:
        """Follows topics: returns an iterator that waits for new records.

        Args:
            topics: names or handles, or a mapping of them to where to begin: a cursor (records
                after this seq), `EARLIEST` or `LATEST`. Names without a start begin at `LATEST`. A
                name that ends with `*` is a pattern; topics created later join it from their first
                record.
            exclude_nodes: skip records that come from this node, or from these nodes.
            tag: only records with this tag; `"eu:*"` selects tags by prefix.
            events: also yield `CaughtUp` and `TopicDeleted` (default: False).
            gaps: what to do about lost records: `"yield"` a `Gap` (default), `"raise"` `DataLoss`,
                or `"skip"` them; then all items are records, without `events`.
            strong: yield records only once they are synced, whatever the class of their topic.
            lenient: let topics that do not exist join when they are created, instead of raising.
            limit: most records per event (default: 256).

        Raises:
            NotFound: a topic does not exist, and `lenient` is False.
            InvalidRequest: an argument is wrong.

        Example:
            ```python
            with db.watch({"orders": 0}) as watch:
                for item in watch: handle(item)
            ```
        """
        backend = self._backend
        return Watch(backend, topics, exclude_nodes, tag, events, gaps, strong, lenient, limit)

    def router(
        self,
        name: str,
        source: str | Named | None = None,
        dest: str | Named | None = None,
        *,
        preserve_origin: bool = True,
        preserve_tag: bool = True,
        tag: str | None = None,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once",
    ) -> Router:
        """Returns a handle of a router; with `source` and `dest`, creates or updates the router.

        A router copies every record that is written to its source from now on to its destination.

        Args:
            name: the name of the router.
            source: the name or a handle of the topic that is copied from. A topic that does not
                exist is created, with the options of the handle.
            dest: the name or a handle of the topic that is copied to; created like the source.
            preserve_origin: copy the origin of each record (default: True).
            preserve_tag: copy the tag of each record (default: True).
            tag: copy only records with this tag; `"eu:*"` selects tags by prefix.
            create_dest: create the destination if it does not exist (default: True).
            allow_cycle: allow a cycle of routers (default: False).
            guarantee: `"at_least_once"` (default) or `"exactly_once"`.

        Raises:
            Conflict: the router would close a cycle.
            NotFound: the source does not exist.

        Example:
            ```python
            db.router("audit", source="orders", dest="orders.audit")
            ```
        """
        arguments.choice("guarantee", guarantee, ("at_least_once", "exactly_once"))
        router = Router(self._backend, name)
        if (source is None) != (dest is None):
            raise InvalidRequest(
                "a router needs both source and dest: give both, or neither for a handle"
            )
        if source is not None and dest is not None:
            options: dict[str, Any] = {
                "preserve_node": arguments.flag("preserve_origin", preserve_origin),
                "preserve_tag": arguments.flag("preserve_tag", preserve_tag),
                "create_dest": arguments.flag("create_dest", create_dest),
                "allow_cycle": arguments.flag("allow_cycle", allow_cycle),
                "exactly_once": guarantee == "exactly_once",
                "match": arguments.tag_filter(tag),
            }
            names = (arguments.name("source", source), arguments.name("dest", dest))
            declare(self._backend, source)
            if create_dest:
                declare(self._backend, dest)
            self._backend.create_router(name, *names, **options)
        return router

    def routers(self, prefix: str = "") -> list[RouterInfo]:
        """The routers whose names begin with `prefix`, in name order.

        Args:
            prefix: only names that begin with it (default: all).
        """
        found = self._backend.routers(arguments.text("prefix", prefix))
        return [RouterInfo.from_fields(fields) for fields in found]

    def transaction(
        self,
        writer: str | None = None,
        epoch: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Transaction:
        """Returns a block at whose end rows are appended, cursors moved and jobs acked, all or
        nothing.

        The result is durable. An exception inside the block aborts it. After `Unavailable`, repeat
        the same transaction: what was decided is finished and not done twice.

        Args:
            writer: the name of a transaction writer, whose epochs increase.
            epoch: the epoch of this transaction. A repeat of the last epoch changes nothing and
                returns the first answer; an older one raises `Conflict`. Default: the next one.
            idempotency_key: without a writer, a key that is remembered for two minutes.

        Raises:
            Conflict: `expect_head`, an epoch or a lease does not hold.

        Example:
            ```python
            with db.transaction() as tx:
                tx.append("out", rows)
                tx.ack(job)
            ```
        """
        return Transaction(self._backend, writer, epoch, idempotency_key)

    def forget_writer(self, writer: str) -> bool:
        """Forgets a transaction writer, so that its next commit may have any epoch.

        Transactions that it has staged are aborted; what it has published stays.

        Args:
            writer: the name of the writer.

        Returns:
            False if there is no such writer.
        """
        return self._backend.forget_writer(arguments.name("writer", writer))

    def sync(self) -> None:
        """Waits until everything that was acked before is durable.

        Raises:
            DataLoss: acked records of class `memory` were lost before they were written; reported
                once, one topic at a time.
        """
        with with_lost_range():
            self._backend.sync()

    def checkpoint(self) -> None:
        """Copies the records of the write-ahead log into segments."""
        self._backend.checkpoint()

    def backup(self, dir: str | os.PathLike[str]) -> Backup:
        """Copies the data directory, while others go on writing. The copy has everything that was
        acked before the call.

        Args:
            dir: a directory that is missing or empty: the copy opens like any directory. Or the URL
                of a prefix of an object store that nobody has written to, `s3://bucket/prefix` or
                `file:///directory`: `te.restore` makes a directory of it, and
                `te.open(URL, read_only=True)` reads it. Of a server: a name below its setting
                `backup_dir`.

        Raises:
            InvalidRequest: the target cannot be used, or the server makes no backups.
            Corrupt: a file of the directory is damaged, and the target is an object store.
            Unavailable: there is no space, for example. A directory is left with a mark, and is
                refused as a data directory; the next backup may use it. A prefix is left without a
                base, and the next backup needs another one.

        Example:
            ```python
            db.backup("backup-monday")
            db.backup("s3://backups/orders/monday")
            ```
        """
        return Backup.from_json(self._backend.backup(arguments.path("dir", dir)))

    def verify(self) -> Verification:
        """Checks every byte of the directory, and that every live record can be read."""
        return Verification.from_json(self._backend.verify())

    def metrics(self) -> Mapping[str, Any]:
        """Returns the counters and gauges of the engine, as `GET /v0/metrics` has them."""
        found: dict[str, Any] = json.loads(self._backend.metrics(json=True))
        return found

    def scan(self, /, topic: str, **asked: Unpack[ScanOptions]) -> Any:
        """Returns a range of a topic as an Arrow stream: an object with `__arrow_c_stream__`.

        Args:
            topic: the name of the topic.
            asked: `after` (a cursor, or `EARLIEST`, the default), `to_seq`, `columns` and the other
                fields of `te.ScanOptions`.

        Raises:
            NotFound: the topic does not exist.
            InvalidRequest: an argument is wrong, or a column has both JSON and binary payloads.
            ModuleNotFoundError: of a server, pyarrow is not installed
                (`pip install 'topics-engine[arrow]'`).

        Example:
            ```python
            stream = db.scan("orders", after=0, columns=["seq", "data"])
            for batch in pyarrow.RecordBatchReader.from_stream(stream): ...
            ```
        """
        return self._backend.scan_range(arguments.name("topic", topic), scan_request(asked))

    def split(self, /, topic: str, **asked: Unpack[SplitOptions]) -> list[Split]:
        """Splits a range of a topic into parts of about equal size, from the index alone.

        Args:
            topic: the name of the topic.
            asked: `after` (default: 0), `to_seq`, `max_records` and `max_bytes`, the fields of
                `te.SplitOptions`.

        Returns:
            The parts in order; together they are the range. Empty if the range is.

        Raises:
            NotFound: the topic does not exist.

        Example:
            ```python
            for part in db.split("orders", max_records=1_000_000):
                stream = db.scan("orders", after=part.after, to_seq=part.to_seq)
            ```
        """
        found = self._backend.split(arguments.name("topic", topic), split_request(asked))
        return splits_of(found)

    def close(self) -> None:
        """Syncs and closes. Every waiting call raises `Closed`, and so does every later one.
        Idempotent.
        """
        self._backend.close()
        _open.discard(self._backend)

    def __repr__(self) -> str:
        return show.database_text(self)

    def _repr_html_(self) -> str:
        return show.database_html(self)


def open_database(
    path: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    at: datetime | str | int | None = None,
    **given: Unpack[Settings],
) -> Database:
    """Opens a data directory in this process.

    Settings are arguments over `TOPICS_*` variables over `topics.toml` over defaults; `.settings`
    of the result has each value with its source.

    Args:
        path: the directory, created if it does not exist (default: the setting `data_dir`,
            `./topics-data`).
        read_only: open an existing directory that no process writes to, without changing it.
            Several processes may do so at the same time.
        at: the state of a prefix at this time: an aware datetime, ISO text with an offset, or epoch
            milliseconds (default: the newest state).
        given: settings by name, for example `max_open_files=256`.

    With the URL of a prefix of an object store as path, `"file:///directory"` or `"s3://…"`, and
    `read_only` it reads what was shipped there, without the data directory and beside its owner.
    The log is fetched into a temporary directory (`TMPDIR`), which `close` removes; sealed segments
    are read from the store. What is shipped later is not seen.

    With `":memory:"` as path it opens an empty database in a temporary directory, which `close`
    removes: for tests. Its topics have the class `memory` unless they say otherwise.

    Raises:
        Locked: another process, or this one, has the directory open.
        Corrupt: a file does not match its checksum.
        InvalidRequest: a setting is unknown or has a wrong value.

    Example:
        ```python
        with te.open("./topics-data") as db:
            db.topic("orders").append({"id": 1})
        ```
    """
    if path == MEMORY:
        return open_in_memory(given)
    named: dict[str, object] = {**given}
    if path is not None:
        if str(path).startswith(("http://", "https://")):
            message = f"{path} is the URL of a server, not a directory: use te.connect({path!r})"
            raise InvalidRequest(message, detail={"field": "path"})
        if is_prefix(path):
            return open_prefix(str(path), given, read_only=read_only, at=at)
        named["data_dir"] = arguments.path("path", path)
    if at is not None:
        message = (
            "`at` is for the URL of a prefix of an object store; te.restore(url, path, copy=True, "
            "at=…) makes a directory of an earlier state"
        )
        raise InvalidRequest(message, detail={"field": "at"})
    resolved = settings.resolve(named)
    engine = _core.Engine.open(str(resolved["data_dir"]), resolved.native(), read_only)
    return Database(EmbeddedBackend(engine), resolved)


PREFIXES = ("file://", "s3://")
"""How the URL of a prefix of an object store begins."""


def is_prefix(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the URL of a prefix of an object store."""
    return str(path).startswith(PREFIXES)


def open_prefix(
    url: str, given: Settings, *, read_only: bool, at: datetime | str | int | None
) -> Database:
    """Opens what a prefix of an object store has of a directory, to read it."""
    if not read_only:
        message = f"{url} is a prefix of an object store: use te.open({url!r}, read_only=True)"
        raise InvalidRequest(message, detail={"field": "path"})
    resolved = settings.resolve({**given})
    at_ms = arguments.optional_epoch_ms("at", at)
    engine = _core.Engine.open(url, resolved.native(), read_only=True, at_ms=at_ms)
    return Database(EmbeddedBackend(engine), resolved)


MEMORY = ":memory:"


def open_in_memory(given: Settings) -> Database:
    """Opens an empty database of class `memory` in a temporary directory, which goes with it."""
    import shutil
    import tempfile

    directory = tempfile.mkdtemp(prefix="topics-")
    try:
        memory = {"default_durability": "memory", **given, "data_dir": directory}
        resolved = settings.resolve(memory)
        engine = _core.Engine.open(directory, resolved.native(), temporary=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Database(EmbeddedBackend(engine), resolved)


def clone(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Backup:
    """Copies a data directory that is not open, or a backup. Files that never change are shared by
    hard links, so that it takes no time and no space, unless `target` is on another file system.

    Args:
        source: the directory; nothing in it changes.
        target: a directory that is missing or empty.

    Raises:
        Locked: the source is open.
        InvalidRequest: one of the directories cannot be used.
    """
    return Backup.from_json(_core.clone_directory(source, target))


def verify(path: str | os.PathLike[str], *, data: bool = False) -> Verification:
    """Checks every byte of a data directory, open or closed; or, with the URL of a prefix of an
    object store, what its newest base names. Changes nothing.

    Of a prefix it checks that each object is there, with its length and its footer.

    Args:
        path: the directory, or `s3://bucket/prefix` or `file:///directory`.
        data: of a prefix, whether every byte is read too.

    Returns:
        What was found; it is true if there are no problems.

    Raises:
        InvalidRequest: the path is not a data directory, or the URL is wrong.
        NotFound: the prefix holds nothing yet.
        Unavailable: the store cannot be reached.

    Example:
        ```python
        result = te.verify("./topics-data")
        for problem in result.problems:
            print(problem["file"], problem["offset"], problem["detail"])
        ```
    """
    is_deep = arguments.flag("data", data)
    if is_prefix(path):
        return Verification.of_prefix(verify_prefix(str(path), data=is_deep))
    if is_deep:
        message = "`data` is for the URL of a prefix of an object store: a directory is read whole"
        raise InvalidRequest(message, detail={"field": "data"})
    return Verification.from_json(_core.verify(arguments.path("path", path)))


def verify_prefix(
    url: str, *, data: bool, progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """The report on a prefix of an object store; `progress(done, total)` is called after each
    object.
    """
    found = json.loads(_core.verify_remote(url, data=data, progress=progress))
    if found is None:
        raise NotFound(f"{url} holds nothing yet: no directory has been archived to it")
    return {"remote": url, **found}


def restore(
    url: str,
    path: str | os.PathLike[str],
    *,
    copy: bool = False,
    at: datetime | str | int | None = None,
) -> Restored:
    """Restores a data directory from the object store that it was backed up to.

    The new directory goes on with the prefix, on this machine: open it with the same `remote_url`.
    Sealed segments stay in the prefix until they are read. The directory that wrote to the prefix
    before is refused there from now on, and so is its server if it still runs.

    A `copy` has nothing to do with the prefix any more: every record is downloaded, the prefix does
    not change, and its owner goes on. Open it with another prefix, or without one.

    Args:
        url: the prefix, `s3://bucket/prefix` or `file:///directory`.
        path: a directory that is missing or empty.
        copy: whether it is a copy.
        at: of a copy, the state at this time: an aware datetime, ISO text with an offset, or epoch
            milliseconds (default: the newest state).

    Returns:
        What was restored, and what lies beyond it.

    Raises:
        InvalidRequest: the directory is not empty, the URL is wrong, or the prefix has no state of
            that time.
        Unavailable: the store cannot be reached, or lacks an object.

    Example:
        ```python
        done = te.restore("s3://backups/orders", "./restored")
        print(done.state_ms, done.has_later)
        ```
    """
    directory = arguments.path("path", path)
    when = arguments.optional_epoch_ms("at", at)
    where = arguments.text("url", url)
    as_copy = arguments.flag("copy", copy)
    return Restored.from_json(_core.restore(where, directory, copy=as_copy, at_ms=when))


os.register_at_fork(after_in_child=_core.close_locks_in_child)

# What is registered later runs earlier.
atexit.register(_core.stop_logging)


@atexit.register
def close_all() -> None:
    """Closes every open database when the interpreter ends."""
    for backend in list(_open):
        # Nothing can handle an error at exit; acked records are in the log.
        with contextlib.suppress(Exception):
            backend.close()
