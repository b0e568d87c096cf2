"""The renewal of leases of a server: one thread per client, for sync and asyncio."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from .. import _core
from ..client.backend import call_timeout
from ..errors import NotFound, TopicsError

if TYPE_CHECKING:
    from .._core import HeldLease, _Outcome, _Renewal

    Extend = Callable[[_Renewal], _Outcome]

# Seconds without a lease after which the thread ends.
IDLE_SECONDS = 10.0

log = logging.getLogger("topics_engine.remote")


class LeaseRenewer:
    """Renews what the schedule says is due, with connections of its own. Thread-safe."""

    def __init__(self, extend: Extend) -> None:
        self._extend = extend
        self.schedule = _core.LeaseSchedule()
        self._lock = threading.Lock()
        # Unlike `set` of an event, `put` may be called by a signal handler that interrupts it.
        self._changes: SimpleQueue[None] = SimpleQueue()
        self._has_thread = self._is_closed = False
        # When the thread looks at the schedule next, if nothing wakes it before.
        self._wakes_at = math.inf

    def hold(
        self, queue: str, node: str, lease_ms: int, jobs: list[tuple[int, int]], elapsed: float
    ) -> list[HeldLease]:
        """Renews the leases of a claim that was sent `elapsed` seconds ago."""
        held = self.schedule.hold(queue, node, lease_ms, jobs, elapsed)
        if held:
            self._wake(lease_ms / 3000 - elapsed)
        return held

    def hold_stream(self, queue: str, node: str, lease_ms: int, stream: int) -> HeldLease:
        """Renews the leases of a stream, those that have not arrived included."""
        held = self.schedule.hold_stream(queue, node, lease_ms, stream)
        self._wake(lease_ms / 3000)
        return held

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._is_closed = True
        self._changes.put(None)

    def _wake(self, due: float) -> None:
        with self._lock:
            if not self._has_thread and not self._is_closed:
                self._has_thread = True
                threading.Thread(target=self._run, name="topics-leases", daemon=True).start()
        if time.monotonic() + due < self._wakes_at:
            self._changes.put(None)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            with suppress(Empty):
                while True:
                    self._changes.get_nowait()
            if self._is_closed:
                return
            for renewal in self.schedule.take_due():
                self._renew(renewal)
            # From here on a new lease is a change, or is seen by `next_due`.
            self._wakes_at = math.inf
            due, now = self.schedule.next_due(), time.monotonic()
            if due is not None:
                idle_since = now
            elif now - idle_since >= IDLE_SECONDS:
                with self._lock:
                    if self.schedule.next_due() is None:
                        self._has_thread = False
                        return
            wait = IDLE_SECONDS if due is None else due
            self._wakes_at = now + wait
            with suppress(Empty):
                self._changes.get(timeout=wait)

    def _renew(self, renewal: _Renewal) -> None:
        claim, queue, _, lease_ms, seqs, _, _ = renewal
        start = time.monotonic()
        # A server that does not answer must not keep other leases from being renewed.
        call_timeout.set(lease_ms / 3000)
        try:
            _, skipped, _, reasons = self._extend(renewal)
        except NotFound:
            ended = [(seq, "gone") for seq in seqs]
        except TopicsError as error:
            log.debug("queue %r: %d leases were not renewed: %s", queue, len(seqs), error)
            self.schedule.failed(claim)
            return
        else:
            ended = list(zip(skipped, reasons, strict=True))
        self.schedule.renewed(claim, time.monotonic() - start, ended)
