"""What a source needs of an engine, wherever it is: a server, or a directory."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from .filters import Selection
    from .options import Connection, Subscription
    from .planning import Head, Range


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A range of a topic, and what of it is wanted."""

    topic: str
    topic_id: int
    after: int
    upto: int
    columns: tuple[str, ...]
    binary: bool
    strong: bool
    selection: Selection


class Scan(Protocol):
    """A range as it arrives. `to_seq` is where the stream ends, known from its beginning."""

    topic_id: int
    to_seq: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of it; raises `Interrupted` where it ended early."""


class Access(Protocol):
    """Reads of an engine. Everything may raise `TopicsError`."""

    def heads(self, topics: Subscription) -> dict[str, Head]:
        """The topics that there are."""

    def split(self, whole: Range, records: int) -> Sequence[int]:
        """Where parts of so many records end; the last is the end of the range."""

    def fill(self, whole: Range, size: int) -> int:
        """Where the first part of about so many bytes ends."""

    def seek(self, topic: str, ts_ms: int) -> int:
        """The first seq at or after a time."""

    def scan(self, request: ScanRequest) -> AbstractContextManager[Scan]:
        """One attempt. What keeps it from beginning is raised: `Interrupted` or the reason."""

    def keep_open(self) -> AbstractContextManager[None]:
        """What it opens for the first request inside stays open for the others."""


def access(to: Connection) -> Access:
    """One for each process and place: Spark's workers are forked, and used for many tasks."""
    return _access(os.getpid(), to)


@functools.lru_cache(maxsize=8)
def _access(pid: int, to: Connection) -> Access:
    if to.url is None:
        from .directory import Directory

        return Directory(to)
    from .server import Server

    return Server(to)
