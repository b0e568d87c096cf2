"""Job queues: a worker leases a job for a time, then acks it or gives it back."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, cast

from .. import _core
from ..client import arguments
from ..client import queue as plain
from ..client.backend import RemoteBackend
from ..client.queue import (
    LeasedJob,
    claim_options,
    end_jobs,
    error_text,
    jobs_of,
    nack_options,
    unfinished,
)
from ..client.runner import run_options
from ..client.watch import seconds_left
from ..errors import TopicsError
from .bridge import Bridge, current_bridge
from .handle import Closing, async_method, passthrough, runner_of, same_signature
from .runner import TaskRun
from .topic import TopicHandle

if TYPE_CHECKING:
    from ..client.arguments import Duration
    from ..client.backend import JobStream

# Seconds that one claim waits at most; a longer wait is several claims.
LONGEST = 30.0


class Job(LeasedJob):
    """A job that is leased to a worker. `async with job:` acks it, or nacks it on an exception.

    As `topics_engine.Job`. A block that is cancelled was stopped, and has not failed: the job is
    released.
    """

    __slots__ = ()

    async def ack(self) -> bool:
        """Acks the job: it is done, and deleted. Returns False if the lease is over."""
        native = self._queue._native
        return self._finish_alone(await runner_of(native).run(native.ack, *self._lease()))

    async def nack(self, delay: Duration | None = None, *, error: str | None = None) -> bool:
        """Gives the job back, because it failed; see `topics_engine.Job.nack`."""
        native, how = self._queue._native, nack_options(delay, error)
        return self._finish_alone(await runner_of(native).run(native.nack, *self._lease(), *how))

    async def release(self) -> bool:
        """Gives the job back, because its work was not begun: this was no delivery. Returns False
        if the lease is over.
        """
        native = self._queue._native
        return self._finish_alone(await runner_of(native).run(native.release, *self._lease()))

    async def extend(self, lease: Duration | None = None) -> bool:
        """Renews the lease; see `topics_engine.Job.extend`."""
        native, lease_ms = self._queue._native, arguments.optional_milliseconds("lease", lease)
        how = round(self.lease * 1000) if lease_ms is None else lease_ms
        outcome = await runner_of(native).run(native.extend, *self._lease(), how)
        return self._extended(outcome, lease_ms)

    async def __aenter__(self) -> Job:
        if self._must_extend():
            try:
                is_held = await self.extend()
            except TopicsError as error:
                raise self._overdue(error) from error
            if not is_held:
                raise self._lease_lost()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if self._status.is_finished or self._status.is_deferred:
            return
        if kind is None:
            if not await self.ack():
                raise self._lease_lost()
        elif issubclass(kind, Exception):
            await self.nack(error=error_text(error))
        else:
            await self.release()


class Work(Closing, AsyncIterator[Job]):
    """Follows a queue: the iterator waits for jobs. Closing it gives unacked jobs back; those that
    the iterator has not returned are released, and do not count as delivered.
    """

    def __init__(self, queue: plain.Queue, worker: str, native: JobStream) -> None:
        self._queue, self._worker, self._native = queue, worker, native
        self._jobs: deque[Job] = deque()
        self._returned: list[Job] = []
        self._waits: tuple[Bridge, int] | None = None
        self._closed = False

    def __aiter__(self) -> Work:
        return self

    async def __anext__(self) -> Job:
        while not self._jobs and not self._closed:
            await self._fetch()
        if self._closed:
            raise StopAsyncIteration
        job = self._jobs.popleft()
        self._returned = [*unfinished(self._returned), job]
        return job

    async def _fetch(self) -> None:
        if isinstance(native := self._native, RemoteBackend):
            found = await runner_of(native).run(native.next, LONGEST)
            self._closed = found is None
            if found is not None:
                self._jobs.extend(jobs_of(Job, self._queue, self._worker, found))
            return
        bridge = current_bridge()

        def begin(calls: _core.Calls, token: int) -> bool:
            self._waits = bridge, token
            return cast("_core.Work", native).next_later(calls, token, LONGEST)

        try:
            answer = await bridge.wait(None, begin)
        finally:
            self._waits = None
        if answer is None:
            self._closed = True
        else:
            # No await between the answer and `take`: jobs that are not taken are given back.
            self._jobs.extend(jobs_of(Job, self._queue, self._worker, answer.take()))

    async def close(self) -> None:
        """Ends the iteration and gives unacked jobs back. Idempotent."""
        if not self._closed:
            self._closed = True
            self._jobs.clear()
            if self._waits is not None:
                bridge, token = self._waits
                bridge.wake(token)
            await runner_of(self._native).run(self._end)

    def _end(self) -> None:
        returned = unfinished(self._returned)
        if returned:
            with contextlib.suppress(TopicsError):
                end_jobs(self._queue.name, returned, self._queue._native.nack, 0, "")
        self._native.close()


class Queue(TopicHandle[plain.Queue]):
    """A queue by name. It has the methods of a topic, too."""

    __slots__ = ()

    state = async_method(plain.Queue.state)
    ack = async_method(plain.Queue.ack)
    nack = async_method(plain.Queue.nack)
    release = async_method(plain.Queue.release)
    stop = passthrough(plain.Queue.stop)
    peek = async_method(plain.Queue.peek)
    redrive = async_method(plain.Queue.redrive)
    remove = async_method(plain.Queue.remove)
    promote = async_method(plain.Queue.promote)
    pause = async_method(plain.Queue.pause)
    resume = async_method(plain.Queue.resume)

    @same_signature(plain.Queue.claim, remote_too=True)
    async def claim(
        self, worker: str, max: int = 1, *, lease: Duration | None = None, wait: Duration = 0
    ) -> list[Job]:
        native = self._sync._native
        how = claim_options(worker, max, lease)
        seconds = arguments.seconds("wait", wait)
        if self._is_remote:
            got = await self._runner().run(native.claim, *how, seconds)
            return jobs_of(Job, self._sync, worker, got)
        deadline = time.monotonic() + seconds
        while True:
            rest = seconds_left(deadline) or 0.0
            this = min(rest, LONGEST)
            # No await between the answer and `take`: jobs that are not taken are given back.
            answer = self._bridge().wait(
                None, _core.Calls.claim, self._engine, self._sync.name, *how, this
            )
            found = (await answer).take()
            if found[0] or rest <= this:
                return jobs_of(Job, self._sync, worker, found)

    def work(self, worker: str, max: int = 1, *, lease: Duration | None = None) -> Work:
        """Follows the queue: returns an iterator over jobs; see `topics_engine.Queue.work`."""
        native = self._sync._native.work(*claim_options(worker, max, lease))
        return Work(self._sync, worker, native)

    async def run(
        self,
        handler: Callable[[Job], Awaitable[object]],
        *,
        worker: str,
        concurrency: int = 8,
        lease: Duration | None = None,
        on_error: Callable[[Job, Exception], object] | None = None,
    ) -> None:
        """Works on the queue until it is stopped: awaits `handler(job)` in tasks.

        As `topics_engine.Queue.run`. A run that is cancelled cancels its handlers; their jobs are
        released. A signal handler that ends a run of another thread's loop calls `stop` there, with
        `loop.call_soon_threadsafe`.

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
            async with te.aio.open("./topics-data") as db:
                mails = await db.queue("mails")
                await mails.append({"to": "a@example.org"})

                async def send(job):
                    print("sent to", job.data["to"])
                    mails.stop()  # a worker waits for SIGTERM instead

                await mails.run(send, worker="worker-1")
            ```
        """
        await TaskRun(self, handler, run_options(worker, concurrency, lease, on_error)).run()
