"""The handle of an open data directory, or of a connection to a server."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from .. import settings
from ..client import database as plain
from ..client.database import open_database
from ..client.values import Backup, Record, Restored, Split, TopicInfo, Verification
from . import bridge
from .handle import (
    Closing,
    ReprMixin,
    async_method,
    documented_by,
    long_async_method,
    runner_of,
    wrapping,
)
from .queue import Queue
from .router import Router
from .topic import Topic
from .transaction import Transaction
from .watch import Watch

if TYPE_CHECKING:
    from datetime import datetime

    from ..client.arguments import Duration
    from ..client.read import Item, OnGap, WithoutGaps
    from ..client.watch import Event, Watched, WatchOptions
    from ..options import ScanOptions, Settings, SplitOptions, TopicConfig
    from ..remote import Verify


class Database(ReprMixin[plain.Database], Closing):
    """Topics of an embedded engine or of a server, usable from several event loops.

    Use it in an `async with` block, or `await` its `close`.
    """

    __slots__ = ("_counted",)

    def __init__(self, database: plain.Database) -> None:
        super().__init__(database)
        # Whether `retain` has counted it.
        self._counted = not self._is_remote

    @property
    def path(self) -> str:
        """The data directory, or the URL of the server."""
        return self._sync.path

    @property
    def closed(self) -> bool:
        """Whether it is closed, or belongs to the parent process of a fork."""
        return self._sync.closed

    @property
    def settings(self) -> settings.Resolved:
        """Its settings, each with its source; empty for a connection, whose server has its own."""
        return self._sync.settings

    def topic(self, /, name: str, **options: Unpack[TopicConfig]) -> Topic:
        """Returns a handle of a topic; see `topics_engine.Database.topic`."""
        return Topic(self._sync.topic(name, **options))

    def __getitem__(self, name: str) -> Topic:
        return self.topic(name)

    def topics(self, prefix: str = "") -> AsyncIterator[TopicInfo]:
        """The topics, in name order; see `topics_engine.Database.topics`."""
        return self._listed(lambda: list(self._sync.topics(prefix)))

    def queues(self, prefix: str = "") -> AsyncIterator[TopicInfo]:
        """The queues, in name order; see `topics_engine.Database.queues`."""
        return self._listed(lambda: list(self._sync.queues(prefix)))

    async def _listed(self, look: Callable[[], list[TopicInfo]]) -> AsyncIterator[TopicInfo]:
        for info in await self._runner().run(look):
            yield info

    def __aiter__(self) -> AsyncIterator[str]:
        """The names of the topics, in order."""
        return self._names()

    async def _names(self) -> AsyncIterator[str]:
        for info in await self._runner().run(lambda: list(self._sync.topics())):
            yield info.topic

    async def exists(self, name: str) -> bool:
        """Whether a topic of this name exists: `name in db` of the sync client.

        Args:
            name: the name of the topic.
        """
        return await self._runner().run(self._sync.__contains__, name)

    consumers = async_method(plain.Database.consumers)
    queue = async_method(plain.Database.queue, Queue)
    router = async_method(plain.Database.router, Router)
    transaction = wrapping(plain.Database.transaction, Transaction)
    forget_writer = async_method(plain.Database.forget_writer)
    redrive = async_method(plain.Database.redrive)
    routers = async_method(plain.Database.routers)
    sync = long_async_method(plain.Database.sync)
    checkpoint = long_async_method(plain.Database.checkpoint)
    backup = long_async_method(plain.Database.backup)
    verify = long_async_method(plain.Database.verify)
    metrics = async_method(plain.Database.metrics)

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
    @documented_by(plain.Database.watch)
    def watch(self, topics: Watched, **options: Any) -> Watch[Any]:
        return Watch(self._sync.watch(topics, **options))

    async def scan(self, /, topic: str, **asked: Unpack[ScanOptions]) -> Any:
        """Returns a range of a topic as an Arrow stream; see `topics_engine.Database.scan`."""
        return await self._runner().run(partial(self._sync.scan, topic, **asked))

    async def split(self, /, topic: str, **asked: Unpack[SplitOptions]) -> list[Split]:
        """Splits a range of a topic into parts; see `topics_engine.Database.split`."""
        return await self._runner().run(partial(self._sync.split, topic, **asked))

    async def close(self) -> None:
        """Syncs and closes. Every waiting call raises `Closed`. Idempotent."""
        if not self.closed:
            await runner_of(self._sync._backend).run_long(self._sync.close)
        if self._counted:
            self._counted = False
            bridge.release()


class Opening:
    """A database that is being opened: `await` it, or use it in an `async with` block."""

    def __init__(self, path: str | os.PathLike[str] | None, given: dict[str, Any]) -> None:
        self._open = partial(open_database, path, **given)
        self._lock = threading.Lock()
        self._opened: plain.Database | None = None
        self._abandoned = False
        self._entered: Database | None = None

    def _work(self) -> None:
        """Opens on a thread. If the caller was cancelled meanwhile, closes the database again."""
        opened = self._open()
        with self._lock:
            self._opened = opened
            abandoned = self._abandoned
        if abandoned:
            opened.close()

    async def _wait(self) -> Database:
        bridge.retain()
        here = bridge.current_bridge()
        try:
            await here.run_long(self._work)
        except BaseException:
            with self._lock:
                self._abandoned = True
                opened = self._opened
            if opened is not None:
                here.calls.run(here.token(), opened.close, (), {}, long=True)
            bridge.release()
            raise
        assert self._opened is not None
        return Database(self._opened)

    def __await__(self) -> Generator[Any, None, Database]:
        return self._wait().__await__()

    async def __aenter__(self) -> Database:
        self._entered = await self._wait()
        return self._entered

    async def __aexit__(self, *error: object) -> None:
        if self._entered is not None:
            await self._entered.close()


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    at: datetime | str | int | None = None,
    **given: Unpack[Settings],
) -> Opening:
    """Opens a data directory; see `topics_engine.open`.

    Example:
        ```python
        async with te.aio.open("./topics-data") as db:
            await db.topic("orders").append({"id": 1})
        ```
    """
    return Opening(path, {"read_only": read_only, "at": at, **given})


class Connecting:
    """A connection to a server: `await` it, or use it in an `async with` block."""

    def __init__(self, url: str, api_key: str | None, given: dict[str, Any]) -> None:
        from ..remote import connect_async

        self._database = Database(connect_async(url, api_key, **given))

    async def _there(self) -> Database:
        return self._database

    def __await__(self) -> Generator[Any, None, Database]:
        return self._there().__await__()

    async def __aenter__(self) -> Database:
        return self._database

    async def __aexit__(self, *error: object) -> None:
        await self._database.close()


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
) -> Connecting:
    """Connects to a server; see `topics_engine.connect`.

    Example:
        ```python
        async with te.aio.connect("http://127.0.0.1:4000", api_key="secret") as db:
            await db.topic("orders").append({"id": 1})
        ```
    """
    given = {
        "deadline": deadline,
        "timeout": timeout,
        "connect_timeout": connect_timeout,
        "pool": pool,
        "heartbeat": heartbeat,
        "verify": verify,
    }
    return Connecting(url, api_key, given)


async def clone(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Backup:
    """Copies a data directory that is not open, or a backup; see `topics_engine.clone`."""
    bridge.retain()
    try:
        return await bridge.current_bridge().run_long(plain.clone, source, target)
    finally:
        bridge.release()


async def verify(path: str | os.PathLike[str], *, data: bool = False) -> Verification:
    """Checks a data directory, or a prefix of an object store; see `topics_engine.verify`."""
    bridge.retain()
    try:
        return await bridge.current_bridge().run_long(plain.verify, path, data=data)
    finally:
        bridge.release()


async def restore(
    url: str,
    path: str | os.PathLike[str],
    *,
    copy: bool = False,
    at: datetime | str | int | None = None,
) -> Restored:
    """Restores a data directory from an object store; see `topics_engine.restore`."""
    bridge.retain()
    try:
        return await bridge.current_bridge().run_long(plain.restore, url, path, copy=copy, at=at)
    finally:
        bridge.release()
