"""Job queues: a worker leases a job for a time, then acks it or gives it back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .. import _core
from ..client import arguments
from ..client import queue as plain
from ..client.queue import LeasedJob, claim_options, error_text, jobs_of, nack_options
from ..client.watch import seconds_left
from ..errors import TopicsError
from .bridge import Bridge, current_bridge
from .handle import Closing, async_method, runner_of, same_signature
from .topic import TopicHandle

if TYPE_CHECKING:
    from ..client.arguments import Duration
    from ..client.backend import JobStream

# Seconds that one claim waits at most; a longer wait is several claims.
LONGEST = 30.0


class Job(LeasedJob):
    """A job that is leased to a worker. `async with job:` acks it, or nacks it on an exception or
    cancellation.

    Inside the block a task renews the lease at a third of its time. A job that a transaction acked
    inside the block is not acked again.
    """

    __slots__ = ()

    async def ack(self) -> bool:
        """Acks the job: it is done, and deleted. Returns False if the lease has expired."""
        done, _, _ = await runner_of(self._queue._native).run(
            self._queue._native.ack, *self._lease()
        )
        return bool(done)

    async def nack(self, delay: Duration | None = None, *, error: str | None = None) -> bool:
        """Gives the job back; see `topics_engine.Job.nack`."""
        native, how = self._queue._native, nack_options(delay, error)
        done, _, _ = await runner_of(native).run(native.nack, *self._lease(), *how)
        return bool(done)

    async def extend(self, lease: Duration | None = None) -> bool:
        """Renews the lease; see `topics_engine.Job.extend`."""
        lease_ms = arguments.optional_milliseconds("lease", lease)
        done, _, _ = await runner_of(self._queue._native).run(
            self._queue._native.extend, *self._lease(), lease_ms
        )
        return bool(done)

    async def __aenter__(self) -> Job:
        self._status.renewal = asyncio.create_task(self._renew(), name="topics-renew")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        self._status.renewal.cancel()
        if self._status.acked_by_transaction:
            return
        if kind is not None:
            await self.nack(error=error_text(error))
        elif not await self.ack():
            raise self._lease_lost()

    async def _renew(self) -> None:
        try:
            while True:
                await asyncio.sleep(self.lease / 3)
                if not await self.extend(self.lease):
                    return
        except TopicsError:
            return


class Work(Closing, AsyncIterator[Job]):
    """Follows a queue: the iterator waits for jobs. Closing it gives unacked jobs back."""

    def __init__(self, queue: plain.Queue, worker: str, native: JobStream) -> None:
        self._queue, self._worker, self._native = queue, worker, native
        self._jobs: deque[Job] = deque()
        self._waits: tuple[Bridge, int] | None = None
        self._closed = False

    def __aiter__(self) -> Work:
        return self

    async def __anext__(self) -> Job:
        while not self._jobs and not self._closed:
            await self._fetch()
        if self._closed:
            raise StopAsyncIteration
        return self._jobs.popleft()

    async def _fetch(self) -> None:
        native = self._native
        if not isinstance(native, _core.Work):
            found = await runner_of(native).run(native.next, LONGEST)
            self._closed = found is None
            if found is not None:
                self._jobs.extend(jobs_of(Job, self._queue, self._worker, found))
            return
        bridge = current_bridge()

        def begin(calls: _core.Calls, token: int) -> _core.WaitHandle | None:
            self._waits = bridge, token
            return native.next_later(calls, token, LONGEST)

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
            await runner_of(self._native).run(self._native.close)


class Queue(TopicHandle[plain.Queue]):
    """A queue by name. It has the methods of a topic, too."""

    __slots__ = ()

    state = async_method(plain.Queue.state)
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
        if not isinstance(native, _core.Queue):
            got = await self._runner().run(native.claim, *how, seconds)
            return jobs_of(Job, self._sync, worker, got)
        deadline = time.monotonic() + seconds
        while True:
            rest = seconds_left(deadline) or 0.0
            this = min(rest, LONGEST)
            # No await between the answer and `take`: jobs that are not taken are given back.
            answer = self._bridge().wait(None, native.claim_later, *how, this)
            found = (await answer).take()
            if found[0] or rest <= this:
                return jobs_of(Job, self._sync, worker, found)

    def work(self, worker: str, max: int = 1, *, lease: Duration | None = None) -> Work:
        """Follows the queue: returns an iterator over jobs; see `topics_engine.Queue.work`."""
        native = self._sync._native.work(*claim_options(worker, max, lease))
        return Work(self._sync, worker, native)
