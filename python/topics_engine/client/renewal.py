"""The renewal of leases: one thread per database, while jobs are being worked on."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..errors import Closed, TopicsError

if TYPE_CHECKING:
    from .queue import LeasedJob

# Seconds that the thread sleeps at most while it has no jobs, and after which it then ends.
IDLE_SLEEP, IDLE_END = 1.0, 10.0


class LeaseRenewer:
    """Renews the leases of the jobs of one database at a third of their time. Thread-safe.

    `add` and `discard` take no lock: a job that is done within a third of its lease costs one entry
    of a dictionary.
    """

    def __init__(self, backend: object) -> None:
        # Holds the backend, so that its `id` stays its own.
        self._backend = backend
        self._due: dict[LeasedJob, float] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        # When the thread wakes by itself; infinite when no thread runs.
        self._wakes_at = math.inf

    def add(self, job: LeasedJob) -> None:
        """Renews the lease of a job from now on."""
        due = time.monotonic() + job.lease / 3
        self._due[job] = due
        if due < self._wakes_at:
            self._wake()

    def discard(self, job: LeasedJob) -> None:
        """Stops renewing the lease of a job."""
        self._due.pop(job, None)

    def _wake(self) -> None:
        with self._lock:
            if self._wakes_at == math.inf:
                self._wakes_at = 0.0
                threading.Thread(target=self._run, name="topics-renew", daemon=True).start()
        self._changed.set()

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            self._changed.clear()
            # `add` inserts and then reads `_wakes_at`; this writes it and then reads `_due`: a job
            # is seen by one of the two.
            self._wakes_at = 0.0
            self._renew([job for job, due in list(self._due.items()) if due <= time.monotonic()])
            now = time.monotonic()
            if self._due:
                idle_since = now
            elif now - idle_since >= IDLE_END:
                with self._lock:
                    self._wakes_at = math.inf
                    if not self._due:
                        return
                    self._wakes_at = 0.0
            # The time is set before the jobs are looked at, for the reason above.
            self._wakes_at = now + IDLE_SLEEP
            first = min(list(self._due.values()), default=math.inf)
            self._wakes_at = wakes_at = min(now + IDLE_SLEEP, first)
            self._changed.wait(max(0.0, wakes_at - time.monotonic()))

    def _renew(self, jobs: list[LeasedJob]) -> None:
        """Renews leases, those of one worker and queue in one call."""
        groups: dict[Any, list[LeasedJob]] = defaultdict(list)
        for job in jobs:
            groups[job._queue.name, job.worker, job.lease].append(job)
        for (_, worker, lease), group in groups.items():
            seqs, lease_ids = [job.seq for job in group], [int(job.lease_id) for job in group]
            native, again = group[0]._queue._native, lease / 3
            try:
                renewed, _, _ = native.extend(worker, seqs, lease_ids, round(lease * 1000))
            except Closed:
                renewed = []
            except TopicsError:
                # The lease may still be valid: try again before it ends.
                renewed, again = seqs, lease / 10
            due = time.monotonic() + again
            for job in group:
                if job.seq not in renewed:
                    self.discard(job)
                elif job in self._due:
                    self._due[job] = due


_renewers: weakref.WeakValueDictionary[int, LeaseRenewer] = weakref.WeakValueDictionary()


def renewer_of(backend: object) -> LeaseRenewer:
    """The renewer of a database."""
    found = _renewers.get(id(backend))
    if found is None:
        found = _renewers.setdefault(id(backend), LeaseRenewer(backend))
    return found
