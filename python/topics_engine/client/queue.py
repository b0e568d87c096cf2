"""Job queues: a worker leases a job for a time, then acks it or gives it back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ..errors import Conflict
from ..frozen import Frozen, frozen
from . import arguments, show
from .backend import queue_of
from .closing import Closing
from .read import records_of
from .renewal import renewer_of
from .topic import Topic
from .values import QueueState, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core import _Jobs
    from .arguments import Duration
    from .backend import Backend, JobStream


# Seconds of one wait for jobs; the iterator repeats it.
LONGEST = 3600.0
# What is kept of the error of a job, in bytes; the engine cuts it between characters.
MAX_ERROR = 1024

JobState = Literal["ready", "leased", "delayed", "dead"]
JOB_STATES = ("ready", "leased", "delayed", "dead")


@frozen(eq=False)
class QueueItem(Frozen):
    """A job and its record."""

    record: Record
    """The record of the job."""

    @property
    def seq(self) -> int:
        """The seq of the job in its queue."""
        return self.record.seq

    @property
    def data(self) -> Any:
        """The payload."""
        return self.record.data

    @property
    def tag(self) -> str | None:
        """The tag of the job."""
        return self.record.tag

    @property
    def meta(self) -> Mapping[str, str] | None:
        """The headers of the job."""
        return self.record.meta

    @property
    def time(self) -> datetime:
        """When the job was committed, as an aware `datetime`."""
        return self.record.time

    def _repr_html_(self) -> str:
        return show.fields_html(repr(self), {"data": self.record})


@frozen()
class PeekedJob(QueueItem):
    """A job in any state, as `Queue.peek` returns it. Peeking leases nothing."""

    state: JobState
    """`ready`, `leased`, `delayed` or `dead`."""
    deliveries: int
    """How often it was leased."""
    worker: str | None
    """The worker that has the lease."""
    lease_id: str | None
    """The id of the lease, opaque text."""
    deadline: datetime | None
    """When the lease expires."""
    visible_at: datetime | None
    """When a delayed job can be claimed."""
    lane: int
    """0 to 9; lower lanes are claimed first."""
    group: str | None
    """At most one job of a group is leased at a time."""
    error: str | None
    """Why a worker gave it back, the latest that said so."""


class JobStatus:
    """What happened to a leased job in this process."""

    __slots__ = ("acked_by_transaction", "renewal", "span")
    span: Any
    """The span of its block, set only while `otel` traces it."""

    def __init__(self) -> None:
        self.acked_by_transaction = False
        self.renewal: Any = None
        """Under asyncio: the task that renews the lease."""


@frozen(eq=False, hidden=("_queue", "_status"))
class LeasedJob(QueueItem):
    """A job that is leased to a worker."""

    lease_id: str
    """The id of the lease, opaque text: an ack with the id of an ended lease has no effect."""
    deadline: datetime
    """When the lease of the claim expires; `extend` and a `with` block move it."""
    deliveries: int
    """How often it was leased, this time included."""
    worker: str
    """The worker that it is leased to."""
    lease: float
    """Seconds that the lease lasts, from the claim or the last renewal."""
    _queue: Queue
    _status: JobStatus

    def _lease(self) -> tuple[str, list[int], list[int]]:
        return self.worker, [self.record.seq], [int(self.lease_id)]

    def _lease_lost(self) -> Conflict:
        return Conflict(f"job {self.seq}: the lease expired before the ack: use a longer lease")


class Job(LeasedJob):
    """A job that is leased to a worker. `with job:` acks it, or nacks it on an exception.

    Inside the block the database's renewal thread renews the lease at a third of its time. A job
    that a transaction acked inside the block is not acked again.

    Example:
        ```python
        for job in jobs.claim("worker-1", max=16, wait=5):
            with job:
                work(job.data)
        ```
    """

    __slots__ = ()

    def ack(self) -> bool:
        """Acks the job: it is done, and deleted.

        Returns:
            False if the lease has expired; another worker may have the job.
        """
        done, _, _ = self._queue._native.ack(*self._lease())
        return bool(done)

    def nack(self, delay: Duration | None = None, *, error: str | None = None) -> bool:
        """Gives the job back.

        Args:
            delay: how long no claim gets it (default: the queue's backoff).
            error: why; the first KiB is kept with the job and goes to the dead letter.

        Returns:
            False if the lease has expired.

        Example:
            ```python
            job.nack(delay="1m", error="the mail server does not answer")
            ```
        """
        how = nack_options(delay, error)
        done, _, _ = self._queue._native.nack(*self._lease(), *how)
        return bool(done)

    def extend(self, lease: Duration | None = None) -> bool:
        """Renews the lease.

        Args:
            lease: how long from now (default: the queue's lease).

        Returns:
            False if the lease has expired.
        """
        done, _, _ = self._queue._native.extend(
            *self._lease(), arguments.optional_milliseconds("lease", lease)
        )
        return bool(done)

    def __enter__(self) -> Job:
        self._queue._renewer.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        self._queue._renewer.discard(self)
        if self._status.acked_by_transaction:
            return
        if kind is not None:
            self.nack(error=error_text(error))
        elif not self.ack():
            raise self._lease_lost()


class Work(Closing, Iterator[Job]):
    """Follows a queue: the iterator waits for jobs. Closing it gives unacked jobs back.

    Waiting is interrupted by Ctrl-C. Not thread-safe, but `close` may be called from any thread and
    ends the iteration.
    """

    def __init__(self, queue: Queue, worker: str, stream: JobStream) -> None:
        self._queue, self._worker, self._stream = queue, worker, stream
        self._jobs: deque[Job] = deque()
        self._closed = False

    def __iter__(self) -> Work:
        return self

    def __next__(self) -> Job:
        while not self._jobs and not self._closed:
            found = self._stream.next(LONGEST)
            if found is None:
                self._closed = True
            else:
                self._jobs.extend(jobs_of(Job, self._queue, self._worker, found))
        if self._closed:
            raise StopIteration
        return self._jobs.popleft()

    def close(self) -> None:
        """Ends the iteration and gives unacked jobs back. Idempotent."""
        self._closed = True
        self._stream.close()

    def __repr__(self) -> str:
        return f"<Work of {self._queue.name!r} as {self._worker!r}{', closed' * self._closed}>"


class Queue(Topic):
    """A queue by name. Thread-safe. It has the methods of a topic, too."""

    __slots__ = ("_native", "_renewer")
    _kind = "queue"
    _iterated_by = "work(worker) follows it, claim(worker) leases jobs, read() ends at its head"

    def __init__(self, backend: Backend, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(backend, name, {"type": "queue", **options})
        self._native = queue_of(backend, name)
        self._renewer = renewer_of(backend)

    def claim(
        self, worker: str, max: int = 1, *, lease: Duration | None = None, wait: Duration = 0
    ) -> list[Job]:
        """Claims up to `max` jobs for a worker, each under a lease.

        Args:
            worker: the name of the worker.
            max: most jobs to lease (default: 1).
            lease: how long the lease lasts (default: the queue's `lease`).
            wait: how long to wait for the first job at most (default: 0).

        Returns:
            The jobs; an empty list if there are none.

        Raises:
            Conflict: the topic is not a queue.

        Example:
            ```python
            for job in jobs.claim("worker-1", max=16, wait=5):
                with job: work(job.data)
            ```
        """
        how = claim_options(worker, max, lease)
        found = self._native.claim(*how, arguments.seconds("wait", wait))
        return jobs_of(Job, self, worker, found)

    def work(self, worker: str, max: int = 1, *, lease: Duration | None = None) -> Work:
        """Follows the queue: returns an iterator over jobs as they are leased.

        Args:
            worker: the name of the worker.
            max: most jobs that are leased at the same time (default: 1).
            lease: how long a lease lasts (default: the queue's `lease`).

        Example:
            ```python
            with jobs.work("worker-1", max=4) as work:
                for job in work:
                    with job: handle(job.data)
            ```
        """
        return Work(self, worker, self._native.work(*claim_options(worker, max, lease)))

    def redrive(
        self,
        *,
        to: str | None = None,
        tag: str | None = None,
        seqs: Sequence[int] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Makes dead jobs ready again, or moves dead letters back to their queues.

        Args:
            to: a queue to move them to (default: where each came from).
            tag: only jobs with this tag; `"eu:*"` selects tags by prefix.
            seqs: only these jobs.
            limit: most jobs to move (default: all).
            dry_run: only count them (default: False).

        Returns:
            How many jobs were moved.

        Example:
            ```python
            jobs.redrive(tag="eu:*", limit=100)
            ```
        """
        return self._native.redrive(
            None if to is None else arguments.name("to", to),
            arguments.tag_filter(tag),
            None if seqs is None else arguments.seqs("seqs", seqs),
            arguments.optional_count("limit", limit),
            arguments.flag("dry_run", dry_run),
        )

    def remove(self, seqs: int | Sequence[int], *, force: bool = False) -> int:
        """Deletes jobs in any state. Jobs that are leased are left alone.

        Args:
            seqs: the jobs.
            force: delete leased jobs, too; an ack of their workers has no effect (default: False).

        Returns:
            How many jobs were deleted.

        Example:
            ```python
            jobs.remove([p.seq for p in jobs.peek(state="dead")])
            ```
        """
        wanted = arguments.one_or_more_seqs("seqs", seqs)
        done, _, _ = self._native.remove(wanted, arguments.flag("force", force))
        return len(done)

    def promote(self, seqs: int | Sequence[int]) -> int:
        """Makes delayed jobs ready now. Other jobs are left alone.

        Args:
            seqs: the jobs.

        Returns:
            How many jobs were delayed.

        Example:
            ```python
            jobs.promote([p.seq for p in jobs.peek(state="delayed")])
            ```
        """
        done, _, _ = self._native.promote(arguments.one_or_more_seqs("seqs", seqs))
        return len(done)

    def state(self) -> QueueState:
        """Returns the state and the config of the queue.

        Raises:
            NotFound: the queue does not exist.
            Conflict: the topic is not a queue.

        Example:
            ```python
            print(jobs.state().queue["ready"])
            ```
        """
        state = QueueState.from_json(self._backend.state(self.name))
        if state.type != "queue":
            raise Conflict(f"topic {self.name!r} is a log, not a queue", "not_a_queue")
        return state

    def pause(self) -> None:
        """Sets `paused` in the queue's config: from now on claims wait, or find nothing.

        Leased jobs can be acked, nacked and renewed, and jobs can be appended.
        """
        self.configure(paused=True)

    def resume(self) -> None:
        """Ends `pause`. Waiting claims get jobs immediately."""
        self.configure(paused=False)

    def peek(self, max: int = 100, *, state: JobState | None = None) -> list[PeekedJob]:
        """Returns jobs without leasing them, those that a claim would get next first.

        Args:
            max: most jobs of each state (default: 100).
            state: only jobs of this state, `"ready"`, `"leased"`, `"delayed"` or `"dead"` (default:
                all).

        Example:
            ```python
            for job in jobs.peek(state="dead"):
                print(job.seq, job.data, job.deliveries, job.error)
            ```
        """
        if state is not None:
            arguments.choice("state", state, JOB_STATES)
        seen, page = self._native.peek(state, arguments.count("max", max))
        records = records_of(self.name, page)
        return [_peeked(record, *job) for record, job in zip(records, seen, strict=True)]


def _peeked(
    record: Record,
    state: str,
    deliveries: int,
    worker: str | None,
    lease_id: int | None,
    deadline: int | None,
    visible_at: int | None,
    *rest: Any,
) -> PeekedJob:
    return PeekedJob(
        record,
        cast("JobState", state),
        deliveries,
        worker,
        None if lease_id is None else str(lease_id),
        arguments.optional_time_of(deadline),
        arguments.optional_time_of(visible_at),
        *rest,
    )


def error_text(error: BaseException | None) -> str:
    """The text of an exception that ended the block of a job."""
    if error is None:
        return ""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text[:MAX_ERROR].encode(errors="replace").decode()


def nack_options(delay: Duration | None, error: str | None) -> tuple[int | None, str]:
    """The arguments of a nack, checked, as a backend takes them."""
    return (
        arguments.optional_milliseconds("delay", delay),
        "" if error is None else arguments.text("error", error),
    )


def claim_options(worker: str, max: int, lease: Duration | None) -> tuple[str, int, int | None]:
    """The arguments of a claim, checked, as a backend takes them."""
    return (
        arguments.worker(worker),
        arguments.count("max", max),
        arguments.optional_milliseconds("lease", lease),
    )


J = TypeVar("J", bound=LeasedJob)


def jobs_of(kind: type[J], queue: Queue, worker: str, found: _Jobs) -> list[J]:
    """The jobs of a claim."""
    leases, lease_ms, page = found
    records, lease, time_of = records_of(queue.name, page), lease_ms / 1000, arguments.time_of
    return [
        kind(record, str(id), time_of(until), deliveries, worker, lease, queue, JobStatus())
        for record, (_, id, until, deliveries) in zip(records, leases, strict=True)
    ]
