"""The runner of a worker of an event loop: claims jobs, awaits the handler, acks in batches."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from ..client.backend import call_timeout
from ..client.queue import error_text
from ..client.runner import (
    CALL_SECONDS,
    CLAIM_SECONDS,
    PAUSE_SECONDS,
    EndedJob,
    RunOptions,
    batches,
    give_up_at,
    is_lasting,
    log_away,
    log_given_up,
    log_lost,
    report,
    stopping_signals,
)
from ..errors import LeaseLost, NotFound, TopicsError

if TYPE_CHECKING:
    from .queue import Job, Queue


def _stop_soon(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Stops a run of a loop from a signal handler."""
    loop.call_soon_threadsafe(stop)


class TaskRun:
    """A run whose handlers are awaited in tasks of the running loop."""

    def __init__(
        self, queue: Queue, handler: Callable[[Job], Awaitable[object]], options: RunOptions
    ) -> None:
        self._queue, self._handler, self._options = queue, handler, options
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._ended: asyncio.Queue[EndedJob | None] = asyncio.Queue()

    def stop(self) -> None:
        """Ends it after the jobs in hand."""
        self._is_stopping = True
        self._changed.set()

    def _must_stop(self) -> bool:
        return self._is_stopping

    async def run(self) -> None:
        """Works until it is stopped."""
        plain, loop = self._queue._sync, asyncio.get_running_loop()
        ending = asyncio.create_task(self._end_jobs(), name="topics-acks")
        plain._runs.add(self)
        try:
            with stopping_signals(partial(_stop_soon, loop, self.stop)):
                await self._claim()
                while self._tasks:
                    await asyncio.wait(self._tasks)
        finally:
            plain._runs.discard(self)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._ended.put_nowait(None)
            await ending

    async def _claim(self) -> None:
        queue, (worker, concurrency, lease, _) = self._queue, self._options
        call_timeout.set(CALL_SECONDS)
        while not self._must_stop():
            self._changed.clear()
            idle = concurrency - len(self._tasks)
            if not idle:
                await self._changed.wait()
                continue
            try:
                jobs = await queue.claim(worker, idle, lease=lease, wait=CLAIM_SECONDS)
            except NotFound:
                # A worker may start before the first job.
                await self._pause()
                continue
            except TopicsError as error:
                if is_lasting(error, queue._sync):
                    raise
                log_away(queue._sync, error)
                await self._pause()
                continue
            for job in jobs:
                if self._must_stop():
                    self._ended.put_nowait(EndedJob(job, "release"))
                else:
                    task = asyncio.create_task(self._handle(job), name="topics-worker")
                    self._tasks.add(task)
                    task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    async def _pause(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), PAUSE_SECONDS)

    async def _handle(self, job: Job) -> None:
        job._status.is_deferred = True
        has_begun = False
        try:
            async with job:
                has_begun = True
                await self._handler(job)
        except LeaseLost as lost:
            if has_begun:
                self._failed(job, lost)
            else:
                log_lost(self._queue._sync, lost)
        except Exception as error:
            self._failed(job, error)
        except BaseException as error:
            # A run that stops has given the signals back: then a signal handler may have raised it.
            if isinstance(error, SystemExit) and not self._is_stopping:
                self._failed(job, error)
                return
            self._ended.put_nowait(EndedJob(job, "release"))
            raise
        else:
            self._ended.put_nowait(EndedJob(job, "ack"))

    def _failed(self, job: Job, error: Exception | SystemExit) -> None:
        report(self._queue._sync, self._options, job, error)
        self._ended.put_nowait(EndedJob(job, "nack", error_text(error)))

    async def _end_jobs(self) -> None:
        call_timeout.set(CALL_SECONDS)
        is_over = False
        while not is_over:
            ended = [await self._ended.get()]
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
            is_over = None in ended
            for (verb, error), jobs in batches([e for e in ended if e is not None]).items():
                await self._end(verb, error, jobs)

    async def _end(self, verb: str, error: str, jobs: list[Job]) -> None:
        queue = self._queue
        how = {"error": error} if verb == "nack" else {}
        until = give_up_at(jobs)  # type: ignore[arg-type]
        while True:
            try:
                lost = await getattr(queue, verb)(jobs, **how)
                break
            except TopicsError as failed:
                if is_lasting(failed, queue._sync) or time.monotonic() >= until:
                    log_given_up(queue._sync, verb, jobs, failed)  # type: ignore[arg-type]
                    return
                await asyncio.sleep(PAUSE_SECONDS)
        for job in lost:
            log_lost(queue._sync, job._lease_lost())
