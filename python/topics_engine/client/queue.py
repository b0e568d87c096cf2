"""Job queues: a worker leases a job for a time, then acks it or gives it back."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ..errors import LEASE_ENDS, Conflict, InvalidRequest, LeaseLost, TopicsError
from ..frozen import Frozen, frozen
from . import arguments, show
from .closing import Closing
from .read import records_of
from .topic import Topic
from .values import QueueState, Record, lease_number, lease_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .. import _core
    from .._core import _Jobs, _Outcome
    from .arguments import Duration
    from .backend import Backend, JobStream
    from .runner import Runs


# Seconds of one wait for jobs; the iterator repeats it.
LONGEST = 3600.0
# What is kept of the error of a job, in bytes; the engine cuts it between characters.
MAX_ERROR = 1024
# Jobs of one call, as a server takes them.
MAX_JOBS = 1000

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

    __slots__ = ("held", "is_deferred", "is_finished", "reason", "span")
    span: Any
    """The span of its block, set only while `otel` traces it."""

    def __init__(self, held: _core.HeldLease) -> None:
        self.held = held
        """Its place in the schedule of renewals, until this is dropped."""
        self.is_finished = False
        """It was acked, nacked or released."""
        self.is_deferred = False
        """Its block leaves that to the runner."""
        self.reason: str | None = None
        """Why a verb skipped it, as in `LeaseLost.reason`."""


@frozen(eq=False, hidden=("_queue", "_status"))
class LeasedJob(QueueItem):
    """A job that is leased to a worker. Its lease is renewed for as long as the program has it."""

    lease_id: str
    """The id of the lease, opaque text: an ack with the id of an ended lease has no effect."""
    deadline: datetime
    """When the lease of the claim expires; renewals move it."""
    deliveries: int
    """How often it was handed to a worker, this time included."""
    worker: str
    """The worker that it is leased to."""
    lease: float
    """Seconds that the lease lasts, from the claim or the last renewal."""
    _queue: Queue
    _status: JobStatus

    def _lease(self) -> tuple[str, list[int], list[int]]:
        return self.worker, [self.record.seq], [lease_number(self.lease_id)]

    def _finish(self, skipped: Mapping[int, str]) -> bool:
        """Notes what a verb that ends leases did; `skipped` has the reason of each skipped job."""
        reason = skipped.get(self.record.seq)
        self._status.held.discard()
        if reason is None:
            self._status.is_finished = True
        else:
            self._status.reason = self._status.reason or reason
        return reason is None

    def _finish_alone(self, outcome: _Outcome) -> bool:
        return self._finish(skipped_in(outcome))

    def _extended(self, outcome: _Outcome, lease_ms: int | None) -> bool:
        if outcome[0]:
            self._status.held.set_lease(round(self.lease * 1000) if lease_ms is None else lease_ms)
        else:
            self._finish_alone(outcome)
        return bool(outcome[0])

    def _lease_lost(self, cause: TopicsError | None = None) -> LeaseLost:
        status = self._status
        reason = "finished" if status.is_finished else status.reason or "ended"
        why = LEASE_ENDS[reason] + (f": {cause}" if cause is not None else "")
        detail = {"queue": self.record.topic, "seq": self.seq, "reason": reason}
        return LeaseLost(f"job {self.seq}: its lease is lost: {why}", detail=detail)

    def _must_extend(self) -> bool:
        """Whether the lease has to be renewed before the job can begin. Raises if it is over."""
        status = self._status
        status.reason = status.reason or status.held.ended
        if status.is_finished or status.reason is not None:
            raise self._lease_lost()
        return status.held.is_overdue

    def _overdue(self, error: TopicsError) -> LeaseLost:
        self._status.reason = "overdue"
        return self._lease_lost(error)


class Job(LeasedJob):
    """A job that is leased to a worker. `with job:` acks it, or nacks it on an exception.

    The lease is renewed from the claim on, by a thread of the database, for as long as the program
    has the job. The block raises `LeaseLost` before its body if the lease is over, and after it if
    the lease ended meanwhile. A block that ends with `KeyboardInterrupt`, `SystemExit` or another
    exception that is not an `Exception` was stopped, and has not failed: the job is released. A job
    that was acked, nacked or released inside the block, or acked by a transaction, is left alone.

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
            False if the lease is over; another worker may have the job.
        """
        return self._finish_alone(self._queue._native.ack(*self._lease()))

    def nack(self, delay: Duration | None = None, *, error: str | None = None) -> bool:
        """Gives the job back, because it failed.

        Args:
            delay: how long no claim gets it (default: the queue's backoff).
            error: why; the first KiB is kept with the job and goes to the dead letter.

        Returns:
            False if the lease is over.

        Example:
            ```python
            job.nack(delay="1m", error="the mail server does not answer")
            ```
        """
        how = nack_options(delay, error)
        return self._finish_alone(self._queue._native.nack(*self._lease(), *how))

    def release(self) -> bool:
        """Gives the job back, because its work was not begun: this was no delivery.

        Returns:
            False if the lease is over.
        """
        return self._finish_alone(self._queue._native.release(*self._lease()))

    def extend(self, lease: Duration | None = None) -> bool:
        """Renews the lease, which later renewals keep as long as this one.

        Args:
            lease: how long from now (default: the lease of the claim).

        Returns:
            False if the lease is over.
        """
        lease_ms = arguments.optional_milliseconds("lease", lease)
        how = round(self.lease * 1000) if lease_ms is None else lease_ms
        return self._extended(self._queue._native.extend(*self._lease(), how), lease_ms)

    def __enter__(self) -> Job:
        if self._must_extend():
            try:
                is_held = self.extend()
            except TopicsError as error:
                raise self._overdue(error) from error
            if not is_held:
                raise self._lease_lost()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if self._status.is_finished or self._status.is_deferred:
            return
        if kind is None:
            if not self.ack():
                raise self._lease_lost()
        elif issubclass(kind, Exception):
            self.nack(error=error_text(error))
        else:
            self.release()


class Work(Closing, Iterator[Job]):
    """Follows a queue: the iterator waits for jobs. Closing it gives unacked jobs back.

    Jobs that the iterator has not returned are released, and do not count as delivered. Waiting is
    interrupted by Ctrl-C. Not thread-safe, but `close` may be called from any thread and ends the
    iteration.
    """

    def __init__(self, queue: Queue, worker: str, stream: JobStream) -> None:
        self._queue, self._worker, self._stream = queue, worker, stream
        self._jobs: deque[Job] = deque()
        self._returned: list[Job] = []
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
        job = self._jobs.popleft()
        self._returned = [*unfinished(self._returned), job]
        return job

    def close(self) -> None:
        """Ends the iteration and gives unacked jobs back. Idempotent."""
        if not self._closed:
            self._closed = True
            returned = unfinished(self._returned)
            if returned:
                with contextlib.suppress(TopicsError):
                    self._queue.nack(returned, delay=0)
        self._stream.close()

    def __repr__(self) -> str:
        return f"<Work of {self._queue.name!r} as {self._worker!r}{', closed' * self._closed}>"


class Queue(Topic):
    """A queue by name. Thread-safe. It has the methods of a topic, too."""

    __slots__ = ("_native", "_runs")
    _kind = "queue"
    _iterated_by = "work(worker) follows it, claim(worker) leases jobs, read() ends at its head"

    def __init__(self, backend: Backend, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(backend, name, {"type": "queue", **options})
        self._native = backend.queue(name)
        self._runs: set[Runs] = set()

    def claim(
        self, worker: str, max: int = 1, *, lease: Duration | None = None, wait: Duration = 0
    ) -> list[Job]:
        """Claims up to `max` jobs for a worker, each under a lease.

        The leases are renewed for as long as the program has the jobs.

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

    def ack(self, jobs: Sequence[J]) -> list[J]:
        """Acks jobs in one call: they are done, and deleted.

        Args:
            jobs: jobs of this queue.

        Returns:
            The jobs whose lease is over: they were not acked.

        Example:
            ```python
            lost = jobs.ack(jobs.claim("worker-1", max=100))
            ```
        """
        return end_jobs(self.name, jobs, self._native.ack)

    def nack(
        self, jobs: Sequence[J], delay: Duration | None = None, *, error: str | None = None
    ) -> list[J]:
        """Gives jobs back in one call, because they failed.

        Args:
            jobs: jobs of this queue.
            delay: how long no claim gets them (default: the queue's backoff).
            error: why; the first KiB is kept with the jobs and goes to their dead letters.

        Returns:
            The jobs whose lease is over.
        """
        return end_jobs(self.name, jobs, self._native.nack, *nack_options(delay, error))

    def release(self, jobs: Sequence[J]) -> list[J]:
        """Gives jobs back in one call, because their work was not begun: they were not delivered.

        Args:
            jobs: jobs of this queue.

        Returns:
            The jobs whose lease is over.
        """
        return end_jobs(self.name, jobs, self._native.release)

    def run(
        self,
        handler: Callable[[Job], object],
        *,
        worker: str,
        concurrency: int = 8,
        lease: Duration | None = None,
        on_error: Callable[[Job, Exception], object] | None = None,
    ) -> None:
        """Works on the queue until it is stopped: calls `handler(job)` in threads.

        A job whose handler returns is acked, in batches; one whose handler raises is nacked with
        the text of the exception, also if that is `SystemExit`. A job whose lease is lost is logged
        and left to others. While the server cannot be reached, or the queue does not exist, the run
        waits. SIGTERM, SIGINT and `stop` end it after the jobs in hand; a second signal has its
        usual effect.

        A signal ends all runs of the process, if one of them is in the main thread: Python hands
        signals to no other. Without one there, call `stop` from a signal handler of your own.

        Args:
            handler: does the work of one job. It may ack, nack or release the job itself.
            worker: the name of the worker.
            concurrency: jobs that are worked on at the same time (default: 8). No more are claimed.
            lease: how long a lease lasts (default: the queue's `lease`).
            on_error: called with the job and the exception before a failed job is nacked
                (default: the exception is logged).

        Raises:
            Conflict: the topic is not a queue.

        Example:
            ```python
            def send(job):
                print("sent to", job.data["to"])
                jobs.stop()  # a worker waits for SIGTERM instead

            jobs.run(send, worker="worker-1")
            ```
        """
        # Imported here: it needs modules that other programs do not.
        from .runner import ThreadRun, run_options

        ThreadRun(self, handler, run_options(worker, concurrency, lease, on_error)).run()

    def stop(self) -> None:
        """Ends every `run` of this handle after its jobs in hand. Callable from the handler of a
        job, and from that of a signal.
        """
        for run in list(self._runs):
            run.stop()

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
        return len(self._native.remove(wanted, arguments.flag("force", force))[0])

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
        return len(self._native.promote(arguments.one_or_more_seqs("seqs", seqs))[0])

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

        No further job is returned after 8 MiB of payload.

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
        None if lease_id is None else lease_text(lease_id),
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
    leases, lease_ms, page, holds = found
    records, lease, time_of = records_of(queue.name, page), lease_ms / 1000, arguments.time_of
    return [
        kind(
            record,
            lease_text(id),
            time_of(until),
            deliveries,
            worker,
            lease,
            queue,
            JobStatus(held),
        )
        for record, (_, id, until, deliveries), held in zip(records, leases, holds, strict=True)
    ]


def unfinished(jobs: Iterable[J]) -> list[J]:
    """The jobs that were not acked, nacked or released."""
    return [job for job in jobs if not job._status.is_finished]


def skipped_in(outcome: _Outcome) -> dict[int, str]:
    """Why a verb skipped jobs, by seq."""
    _, skipped, _, reasons = outcome
    return dict(zip(skipped, reasons, strict=True))


def check_job(job: object) -> None:
    """Refuses what no claim returned."""
    if not isinstance(job, LeasedJob):
        arguments.refuse("jobs", "jobs that a claim returned", job)


def batches_of(
    queue: str, jobs: Sequence[J]
) -> Iterator[tuple[list[J], tuple[str, list[int], list[int]]]]:
    """The jobs of each worker, in batches of one call, with their leases."""
    if not isinstance(jobs, Sequence):
        arguments.refuse("jobs", "a sequence of jobs", jobs)
    for job in jobs:
        check_job(job)
        if (other := job.record.topic) != queue:
            raise InvalidRequest(
                f"job {job.seq} is of queue {other!r}, not of {queue!r}: use db.queue({other!r})",
                detail={"field": "jobs"},
            )
    for worker in dict.fromkeys(job.worker for job in jobs):
        mine = [job for job in jobs if job.worker == worker]
        for i in range(0, len(mine), MAX_JOBS):
            part = mine[i : i + MAX_JOBS]
            yield part, (worker, [j.seq for j in part], [lease_number(j.lease_id) for j in part])


def end_jobs(queue: str, jobs: Sequence[J], verb: Callable[..., _Outcome], *how: Any) -> list[J]:
    """Runs a verb that ends leases; returns the jobs whose lease was over before."""
    lost: list[J] = []
    for part, leases in batches_of(queue, jobs):
        skipped = skipped_in(verb(*leases, *how))
        lost += [job for job in part if not job._finish(skipped)]
    return lost
