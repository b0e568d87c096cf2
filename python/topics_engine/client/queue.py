"""Leased queues: jobs are claimed for a time, then done or given back."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import Conflict, TopicsError
from .reading import items_of
from .topic import Topic
from .values import Record

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A job that is leased to a node. `with job:` acks it, or gives it back on an exception.

    While the block runs the lease is renewed at a third of its time. A job that a transaction
    acked within the block is done.
    """

    record: Record
    lease_id: int
    deadline: int
    """When the lease runs out, epoch ms."""
    deliveries: int
    node: str
    lease_ms: int
    _queue: _core.Queue = field(repr=False)
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)
    _settled: threading.Event = field(default_factory=threading.Event, repr=False)
    """Set when a transaction has acked it."""

    @property
    def seq(self) -> int:
        return self.record.seq

    @property
    def data(self) -> Any:
        return self.record.data

    def ack(self) -> bool:
        """Done: the job is deleted. False when the lease is another's by now."""
        done, _, _ = self._queue.ack(self.node, [self.seq], [self.lease_id])
        return bool(done)

    def nack(self, delay_ms: int | None = None) -> bool:
        """Gives the job back, by default after the queue's backoff."""
        done, _, _ = self._queue.nack(self.node, [self.seq], [self.lease_id], delay_ms)
        return bool(done)

    def extend(self, lease_ms: int | None = None) -> bool:
        """The lease runs out so long from now."""
        done, _, _ = self._queue.extend(self.node, [self.seq], [self.lease_id], lease_ms)
        return bool(done)

    def __enter__(self) -> Job:
        self._ended.clear()
        threading.Thread(target=self._renew, name="topics-renew", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._settled.is_set():
            return
        if kind is not None:
            self.nack()
        elif not self.ack():
            raise Conflict(f"job {self.seq}: the lease ran out before the work was done")

    def _renew(self) -> None:
        while not self._ended.wait(self.lease_ms / 3000):
            try:
                if not self.extend(self.lease_ms):
                    return
            except TopicsError:
                return


class Queue(Topic):
    """A queue by name; thread-safe. What a topic does it does too."""

    __slots__ = ("_native",)

    def __init__(self, engine: _core.Engine, name: str, config: Mapping[str, Any]) -> None:
        super().__init__(engine, name, {"type": "queue", **config})
        self._native = _core.Queue(engine, name)

    def claim(
        self, node: str, max: int = 1, *, lease_ms: int | None = None, wait: float = 0
    ) -> list[Job]:
        """Leases up to `max` jobs to a node, waiting up to `wait` seconds for the first."""
        return self._jobs(node, *self._native.claim(node, max, lease_ms, wait), lease_ms)

    def work(self, node: str, max: int = 1, *, lease_ms: int | None = None) -> Generator[Job]:
        """Follows the queue: up to `max` jobs are leased at a time; ending it gives them back."""
        stream = self._native.work(node, max, lease_ms)
        try:
            while (found := stream.next(3600)) is not None:
                yield from self._jobs(node, *found, lease_ms)
        finally:
            stream.close()

    def redrive(
        self,
        *,
        to: str | None = None,
        match: str | None = None,
        seqs: Sequence[int] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Revives dead jobs, or moves them to another queue; returns how many."""
        wanted = None if seqs is None else list(seqs)
        return self._native.redrive(to, match, wanted, limit, dry_run)

    def _jobs(
        self,
        node: str,
        leases: list[tuple[int, int, int, int]],
        batch: _core.Batch,
        lease_ms: int | None,
    ) -> list[Job]:
        if not leases:
            return []
        _, records = items_of(self.name, batch)
        lasts = lease_ms or int(self.state().config["lease_ms"])
        return [
            Job(record, lease_id, deadline, deliveries, node, lasts, self._native)
            for record, (_, lease_id, deadline, deliveries) in zip(records, leases, strict=True)
        ]
