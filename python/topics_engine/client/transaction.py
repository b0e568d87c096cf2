"""Transactions: rows for several topics, cursors and acks, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Conflict, InvalidRequest
from ..frozen import Frozen, frozen
from . import arguments
from .closing import Handle
from .encoding import rows
from .queue import check_job
from .topic import declare
from .values import lease_number

if TYPE_CHECKING:
    from .arguments import Duration
    from .backend import Backend, NewRow
    from .queue import LeasedJob


class Named(Protocol):
    """A handle that has the name of a topic."""

    @property
    def name(self) -> str: ...


class OfTopic(Named, Protocol):
    """A handle of a consumer, with the name of its topic."""

    @property
    def topic(self) -> str: ...


@frozen(unhashed=("topics",))
class Committed(Frozen):
    """The result of a transaction. All of it is durable."""

    epoch: int
    """The epoch of the writer; 0 without a writer."""
    deduped: bool
    """Whether this epoch, or idempotency key, was committed before; then nothing was done now."""
    topics: Mapping[str, tuple[int, int]]
    """First and last seq of the rows of each topic."""


class Transaction(Handle):
    """Collects rows, commits and acks; the end of the `with` block sends them, all or nothing.

    Nothing is sent before, and an exception sends nothing. Topics that get rows accept no other
    writes while the commit runs.
    """

    __slots__ = (
        "_acks",
        "_backend",
        "_commits",
        "_ended",
        "_handles",
        "_heads",
        "_jobs",
        "_options",
        "_result",
        "_rows",
    )

    def __init__(
        self,
        backend: Backend,
        writer: str | None,
        epoch: int | None,
        idempotency_key: str | None,
    ) -> None:
        if writer is not None:
            arguments.name("writer", writer)
        self._backend = backend
        epoch = arguments.optional_seq("epoch", epoch)
        self._options = (writer, epoch, arguments.idempotency_key(idempotency_key))
        self._rows: list[tuple[str, list[NewRow], str | None]] = []
        self._handles: dict[str, Named] = {}
        self._heads: dict[str, int] = {}
        self._commits: list[tuple[str, str, int, Any]] = []
        self._acks: list[tuple[str, str, list[int], list[int] | None]] = []
        self._jobs: list[LeasedJob] = []
        self._ended = False
        self._result: Committed | None = None

    @property
    def result(self) -> Committed:
        """The result, once the block has ended.

        Raises:
            InvalidRequest: the transaction is not committed.
        """
        if self._result is None:
            raise InvalidRequest(
                "the transaction is not committed: read `result` after the end of its `with` block"
            )
        return self._result

    def append(
        self,
        topic: str | Named,
        data: Any,
        *,
        tag: str | None = None,
        origin: str | None = None,
        meta: Mapping[str, str] | None = None,
        ttl: Duration = 0,
        expect_head: int | None = None,
    ) -> None:
        """Adds rows: a list is a batch, any other value is one record.

        Args:
            topic: the name or a handle of the topic. A topic that does not exist is created, with
                the options of the handle, before the transaction begins.
            data: the rows, as in `Topic.append`.
            tag: the tag of rows without one.
            origin: the node that the rows come from.
            meta: headers of rows without any.
            ttl: how long the rows are kept, for example `"7d"`; 0 is for ever (default).
            expect_head: commit only if this is the head of the topic when the rows get their seqs.

        Raises:
            Conflict: another `expect_head` was given for the topic.
            InvalidRequest: the block has ended.
        """
        self._check_open()
        name = arguments.name("topic", topic)
        expect_head = arguments.optional_seq("expect_head", expect_head)
        node = arguments.optional_text("origin", origin)
        if expect_head is not None and self._heads.setdefault(name, expect_head) != expect_head:
            raise Conflict(
                f"topic {name!r}: expect_head is both {self._heads[name]} and {expect_head}"
            )
        encoded = rows(data, tag, meta, ttl)
        if encoded:
            self._rows.append((name, encoded, node))
            if not isinstance(topic, str):
                self._handles[name] = topic

    def commit(self, consumer: OfTopic, seq: int) -> None:
        """Moves the stored cursor of a consumer forwards; a cursor that is further on stays.

        If another handle took the consumer over, the end of the block raises `ConsumerFenced` and
        nothing is committed. An item of a list of consumers has read nothing, and is never fenced.

        Args:
            consumer: the consumer's handle, or an item of `topic.consumers()`.
            seq: everything up to and with it is done.
        """
        self._check_open()
        seq = arguments.seq("seq", seq)
        if not isinstance(getattr(consumer, "topic", None), str):
            arguments.refuse("consumer", "the handle of a consumer", consumer)
        reader = getattr(consumer, "_reader", None)
        self._commits.append((consumer.topic, consumer.name, seq, reader))

    def ack(self, *jobs: LeasedJob) -> None:
        """Acks jobs. The transaction commits only if every lease is still valid.

        Args:
            jobs: the leased jobs.
        """
        self._check_open()
        for job in jobs:
            check_job(job)
            self._acks.append(
                (job.record.topic, job.worker, [job.seq], [lease_number(job.lease_id)])
            )
            self._jobs.append(job)

    def __repr__(self) -> str:
        rows = sum(len(encoded) for _, encoded, _ in self._rows)
        jobs = len(self._jobs)
        of = f"{rows} rows, {len(self._commits)} commits, {jobs} acks"
        ended = "" if not self._ended else ", aborted" if self._result is None else ", committed"
        return f"<Transaction of {of}{ended}>"

    def __enter__(self) -> Transaction:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._send()
        self._ended = True

    def _check_open(self) -> None:
        """Raises after the end of the block, where a call would have no effect."""
        if self._ended:
            raise InvalidRequest(
                "this transaction has ended: begin another one with db.transaction()"
            )

    def _send(self) -> None:
        self._check_open()
        self._ended = True
        for handle in self._handles.values():
            declare(self._backend, handle)
        writer, epoch, key = self._options
        epoch, deduped, topics = self._backend.transact(
            self._rows,
            writer=writer,
            epoch=epoch,
            key=key,
            heads=self._heads,
            commits=self._commits,
            acks=self._acks,
        )
        self._result = Committed(epoch, deduped, {name: (a, b) for name, _, a, b in topics})
        for job in self._jobs:
            job._finish({})
