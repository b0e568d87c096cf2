"""The operations that a source needs from an engine, on a server or in a directory."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .options import is_prefix

if TYPE_CHECKING:
    import pyarrow as pa

    from .directory import Directory
    from .options import Connection, Selection, Subscription
    from .planning import Head, Range
    from .server import Server


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A range of a topic, and the requested part of it."""

    topic: str
    topic_id: int
    after: int
    upto: int
    columns: tuple[str, ...]
    binary: bool
    strong: bool
    selection: Selection
    fields: tuple[tuple[str, str], ...] = ()
    """Names and types of typed columns."""
    base: str | None = None
    """See `Range.base`."""


class Scan(Protocol):
    """A range as it is received. `to_seq` is the end of the stream, known from its start."""

    topic_id: int
    to_seq: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The whole range; raises `Interrupted` if it ended early."""


class Access(Protocol):
    """Reads of an engine. Every method may raise `TopicsError`."""

    def heads(self, topics: Subscription) -> dict[str, Head]:
        """The existing topics."""

    def split(self, whole: Range, records: int) -> Sequence[int]:
        """The ends of parts of `records` records; the last is the end of the range."""

    def cut(self, ranges: Sequence[Range]) -> list[Range]:
        """The same seqs, in more ranges if a part of one is read from the objects of a prefix."""

    def fill(self, whole: Range, size: int) -> int:
        """The end of a first part of about `size` bytes."""

    def seek(self, topic: str, ts_ms: int) -> int:
        """The first seq at or after a time."""

    def scan(self, request: ScanRequest) -> AbstractContextManager[Scan]:
        """One attempt. Raises `Interrupted` or the reason if it cannot start."""

    def keep_open(self) -> AbstractContextManager[None]:
        """Keeps resources that the first request inside opens for the following ones."""


def access(to: Connection) -> Access:
    """One instance for each process and connection: Spark's workers are forked and run many
    tasks."""
    return _access(os.getpid(), to)


@functools.lru_cache(maxsize=8)
def _access(pid: int, to: Connection) -> Access:
    rest: Directory | Server
    if to.url is None:
        from .directory import Directory

        rest = Directory(to)
    else:
        from .server import Server

        rest = Server(to)
    if to.path is None or not is_prefix(to.path):
        return rest
    from .prefix import Prefix

    return Prefix(to, rest)
