"""The runner of a worker: claims jobs, calls the handler, acks in batches."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import Closed, LeaseLost, NotFound, TopicsError
from . import arguments
from .backend import call_timeout

if TYPE_CHECKING:
    from types import FrameType

    from .arguments import Duration
    from .queue import Job, LeasedJob, Queue

log = logging.getLogger("topics_engine.worker")

# Seconds of one wait for jobs: a run notices within them that it was stopped.
CLAIM_SECONDS = 1.0
# Seconds that one claim or ack may try to reach a server, after which it is repeated.
CALL_SECONDS = 5.0
# Seconds between two attempts while the server is away or the queue does not exist.
PAUSE_SECONDS = 0.5


class RunOptions(NamedTuple):
    """How a run works."""

    worker: str
    concurrency: int
    lease: Duration | None
    on_error: Callable[[Any, Exception], object] | None


def run_options(
    worker: str,
    concurrency: int,
    lease: Duration | None,
    on_error: Callable[[Any, Exception], object] | None,
) -> RunOptions:
    """The options of a run, checked."""
    arguments.optional_milliseconds("lease", lease)
    worker, concurrency = arguments.worker(worker), arguments.count("concurrency", concurrency)
    return RunOptions(worker, concurrency, lease, on_error)


class Runs(Protocol):
    """A run that can be stopped."""

    def stop(self) -> None:
        """Ends it after the jobs in hand."""


class EndedJob(NamedTuple):
    """A job whose handler has ended."""

    job: Any
    verb: str
    """`ack`, `nack` or `release`."""
    error: str = ""


def is_lasting(error: TopicsError, queue: Queue) -> bool:
    """Whether a repeat would fail in the same way. A server that is shutting down starts again."""
    is_shutdown = isinstance(error, Closed) and not queue._backend.closed
    return not (error.retryable or is_shutdown)


def log_away(queue: Queue, error: TopicsError) -> None:
    """Logs that a claim has failed and is repeated."""
    log.warning("queue %r: no jobs can be claimed for now: %s", queue.name, error)


def log_lost(queue: Queue, lost: LeaseLost) -> None:
    """Logs that a job is left to other workers."""
    log.warning("queue %r: %s", queue.name, lost)


def report(queue: Queue, options: RunOptions, job: Any, error: Exception | SystemExit) -> None:
    """Says that a handler has failed: to `on_error`, or to the log."""
    if options.on_error is None:
        log.warning("queue %r: job %d failed", queue.name, job.seq, exc_info=error)
        return
    if isinstance(error, SystemExit):
        # `on_error` may raise what it gets, which must not end the run.
        error = exit_as_failure(error)
    try:
        options.on_error(job, error)
    except Exception:
        log.exception("queue %r: on_error failed for job %d", queue.name, job.seq)


def exit_as_failure(error: SystemExit) -> RuntimeError:
    """An exception that says that a handler has called `sys.exit`."""
    failure = RuntimeError(f"the handler ended with SystemExit: {error}")
    failure.__cause__ = error
    return failure


def batches(ended: list[EndedJob]) -> dict[tuple[str, str], list[Any]]:
    """Ended jobs by verb and error; what the handler ended itself is left out."""
    found: dict[tuple[str, str], list[Any]] = {}
    for job, verb, error in ended:
        if not job._status.is_finished:
            found.setdefault((verb, error), []).append(job)
    return found


def give_up_at(jobs: list[LeasedJob]) -> float:
    """When a verb that fails is not repeated any more: the leases have ended by then."""
    return time.monotonic() + max(job.lease for job in jobs)


def log_given_up(queue: Queue, verb: str, jobs: list[LeasedJob], error: TopicsError) -> None:
    """Logs that the outcome of jobs was not stored."""
    log.error(
        "queue %r: %s of %d jobs failed; they run again when their leases end: %s",
        queue.name, verb, len(jobs), error,
    )  # fmt: skip


class Stop(NamedTuple):
    """How a run of this process is stopped, and whether the main thread runs it."""

    call: Callable[[], None]
    is_main: bool


_stops: dict[object, Stop] = {}
_handlers_before: dict[int, Any] = {}


def _handle_signal(number: int, frame: FrameType | None) -> None:
    _restore_handlers()
    for stop in list(_stops.values()):
        stop.call()


def _restore_handlers() -> None:
    while _handlers_before:
        number, handler = _handlers_before.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def stopping_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at the first SIGTERM or SIGINT of the block, and those of all other runs of the
    process; a second signal has its usual effect. `stop` must take no lock.

    Only the main thread can have handlers: without a run there, signals do nothing to the others.
    """
    is_main = threading.current_thread() is threading.main_thread()
    _stops[key := object()] = Stop(stop, is_main)
    if is_main and not _handlers_before:
        for number in (signal.SIGTERM, signal.SIGINT):
            _handlers_before[number] = signal.signal(number, _handle_signal)
    try:
        yield
    finally:
        del _stops[key]
        if is_main and not any(other.is_main for other in _stops.values()):
            _restore_handlers()


class ThreadRun:
    """A run whose handlers are called in threads.

    The caller's thread claims as many jobs as there are idle threads; one more thread acks.
    """

    def __init__(self, queue: Queue, handler: Callable[[Job], object], options: RunOptions) -> None:
        self._queue, self._handler, self._options = queue, handler, options
        self._is_stopping = False
        # A handler was ended by an exception that is not an `Exception`.
        self._stopped_by: BaseException | None = None
        self._idle = options.concurrency
        # Simple queues may be used by a signal handler that interrupts a call of theirs.
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._freed: SimpleQueue[int] = SimpleQueue()
        self._ended: SimpleQueue[EndedJob | None] = SimpleQueue()

    def stop(self) -> None:
        """Ends it after the jobs in hand."""
        self._is_stopping = True
        self._freed.put(0)

    def _must_stop(self) -> bool:
        return self._is_stopping

    def run(self) -> None:
        """Works until it is stopped."""
        count = self._options.concurrency
        targets = [*[self._work] * count, self._end_jobs]
        names = [*["topics-worker"] * count, "topics-acks"]
        threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in zip(targets, names, strict=True)
        ]
        self._queue._runs.add(self)
        try:
            with stopping_signals(self.stop):
                for thread in threads:
                    thread.start()
                try:
                    self._claim()
                finally:
                    self._is_stopping = True
                    for _ in range(count):
                        self._jobs.put(None)
                    for thread in threads[:-1]:
                        thread.join()
                    self._ended.put(None)
                    threads[-1].join()
        finally:
            self._queue._runs.discard(self)
        if self._stopped_by is not None:
            raise self._stopped_by

    def _claim(self) -> None:
        queue, (worker, _, lease, _) = self._queue, self._options
        token = call_timeout.set(CALL_SECONDS)
        try:
            while not self._must_stop():
                self._wait(0 if self._idle else None)
                if not self._idle:
                    continue
                try:
                    jobs = queue.claim(worker, self._idle, lease=lease, wait=CLAIM_SECONDS)
                except NotFound:
                    # A worker may start before the first job.
                    self._wait(PAUSE_SECONDS)
                    continue
                except TopicsError as error:
                    if is_lasting(error, queue):
                        raise
                    log_away(queue, error)
                    self._wait(PAUSE_SECONDS)
                    continue
                for job in jobs:
                    if self._must_stop():
                        self._ended.put(EndedJob(job, "release"))
                    else:
                        self._idle -= 1
                        self._jobs.put(job)
        finally:
            call_timeout.reset(token)

    def _wait(self, timeout: float | None) -> None:
        """Waits until a thread is idle, or the run is stopped."""
        with contextlib.suppress(Empty):
            self._idle += self._freed.get(timeout != 0, timeout)
            while True:
                self._idle += self._freed.get_nowait()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            ended = self._handle(job)
            if ended is not None:
                self._ended.put(ended)
            del job, ended
            self._freed.put(1)

    def _handle(self, job: Job) -> EndedJob | None:
        job._status.is_deferred = True
        has_begun = False
        try:
            with job:
                has_begun = True
                self._handler(job)
        except LeaseLost as lost:
            if not has_begun:
                log_lost(self._queue, lost)
                return None
            return self._failed(job, lost)
        except (Exception, SystemExit) as error:
            # A signal handler that calls `sys.exit` ends the main thread, which runs no handler.
            return self._failed(job, error)
        except BaseException as error:
            self._stopped_by = error
            self.stop()
            return EndedJob(job, "release")
        return EndedJob(job, "ack")

    def _failed(self, job: Job, error: Exception | SystemExit) -> EndedJob:
        from .queue import error_text

        report(self._queue, self._options, job, error)
        return EndedJob(job, "nack", error_text(error))

    def _end_jobs(self) -> None:
        is_over = False
        while not is_over:
            ended: list[EndedJob | None] = [self._ended.get()]
            with contextlib.suppress(Empty):
                while True:
                    ended.append(self._ended.get_nowait())
            is_over = None in ended
            for (verb, error), jobs in batches([e for e in ended if e is not None]).items():
                self._end(verb, error, jobs)

    def _end(self, verb: str, error: str, jobs: list[Job]) -> None:
        queue = self._queue
        how = {"error": error} if verb == "nack" else {}
        until = give_up_at(jobs)  # type: ignore[arg-type]
        call_timeout.set(CALL_SECONDS)
        while True:
            try:
                lost = getattr(queue, verb)(jobs, **how)
                break
            except TopicsError as failed:
                if is_lasting(failed, queue) or time.monotonic() >= until:
                    log_given_up(queue, verb, jobs, failed)  # type: ignore[arg-type]
                    return
                time.sleep(PAUSE_SECONDS)
        for job in lost:
            log_lost(queue, job._lease_lost())
