"""The jobs of a queue of a server.

A claim whose response was lost is repeated; the jobs that it leased become ready when their leases
expire. An ack with an expired lease changes nothing, so acks are safe to repeat.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ..client.backend import RemoteBackend
from ..client.closing import CancelScope
from ..client.jobs import QueueVerbs, done_of, outcome_of
from ..client.page import Page, jobs_of
from ..client.request import encode_json, without_none
from ..errors import Closed, TopicsError
from .caller import Caller, CallStatus, WaitBudget, target
from .events import Event, SseConnection
from .transport import Stream

if TYPE_CHECKING:
    from .._core import HeldLease, _Jobs, _Outcome, _Renewal
    from .backend import HttpBackend

# Seconds that one claim waits at most; a longer wait is several claims.
LONGEST = 20.0


class RemoteQueue(QueueVerbs, RemoteBackend):
    """A queue by name."""

    def __init__(self, remote: HttpBackend, name: str) -> None:
        super().__init__(remote, name)
        self._remote = remote
        self._caller = remote.caller

    def claim(
        self, node: str, max: int = 1, lease_ms: int | None = None, wait: float = 0.0
    ) -> _Jobs:
        budget = WaitBudget(wait)
        while True:
            this = budget.next_wait(LONGEST)
            asked = without_none(
                node=node, max=max, lease_ms=lease_ms, wait_ms=round(this * 1000) or None
            )
            start = time.monotonic()
            body = self._caller.call("claim", self._name, encode_json(asked), wait=this)
            # The leases of a claim that waited begin at an unknown time before the answer.
            elapsed = 0.0 if this else time.monotonic() - start
            found = self._held(node, jobs_of(body, "claimed"), elapsed)
            if found[0] or budget.is_spent:
                return found

    def _held(self, node: str, claimed: tuple[list[Any], int, Page], elapsed: float = 0.0) -> _Jobs:
        """The jobs of a claim, whose leases are renewed from now on."""
        found, lease_ms, page = claimed
        jobs = [(seq, lease_id) for seq, lease_id, _, _ in found]
        held = self._remote.leases.hold(self._name, node, lease_ms, jobs, elapsed)
        return found, lease_ms, page, held  # type: ignore[return-value]

    def _outcome(self, verb: str, seqs: list[int], body: dict[str, Any], **how: Any) -> _Outcome:
        status = CallStatus()
        outcome = super()._outcome(verb, seqs, body, status=status, **how)
        done, skipped, until, reasons = outcome
        if not status.outcome_unknown or not skipped or verb == "extend":
            return outcome
        if verb == "ack":
            # The lost ack may have been executed: then the job is gone.
            gone = [seq for seq in skipped if not self._exists(seq)]
            left = [pair for pair in zip(skipped, reasons, strict=True) if pair[0] not in gone]
            return done + gone, [seq for seq, _ in left], until, [why for _, why in left]
        # Counts as done what an attempt without a response may have done: in both cases this worker
        # no longer has the leases.
        return done + skipped, [], until, []

    def _exists(self, seq: int) -> bool:
        page = self._remote.read(self._name, after=seq - 1, limit=1)
        return len(page) > 0 and page[0][0] == seq

    def work(self, node: str, max: int = 1, lease_ms: int | None = None) -> RemoteJobStream:
        return RemoteJobStream(self, node, max, lease_ms)


class RemoteJobStream(RemoteBackend):
    """A stream of jobs. If it breaks, the server gives its jobs back, and a new one is opened."""

    def __init__(self, leases: RemoteQueue, node: str, max: int, lease_ms: int | None) -> None:
        self._queue, self._node = leases, node
        self._caller = leases._caller
        beat = min(60_000, 1000 if (ms := self._caller.options.heartbeat * 1000) < 1000 else ms)
        how = {"node": node, "max": max, "lease_ms": lease_ms, "heartbeat_ms": round(beat)}
        self._path = target("work", leases._name, query=how)[1]
        self._connection = SseConnection(self._open, self._caller.options.heartbeat)
        # The id of the open stream, and its place among the leases that are renewed.
        self._stream: str | None = None
        self._held: HeldLease | None = None
        self._closed = False
        self._scope = CancelScope()

    def _open(self, idle: float) -> Stream:
        until = time.monotonic() + self._caller.options.deadline
        return self._caller.stream(self._path, {}, idle, until)

    def next(self, wait: float = 0.0) -> _Jobs | None:
        """The next jobs; none if `wait` seconds have passed, `None` if it was closed."""
        try:
            with self._scope.activate():
                return self._next(time.monotonic() + wait)
        except Closed:
            # A closed stream ends. A closed client is an error.
            if not self._closed:
                raise
            return None

    def _next(self, until: float) -> _Jobs | None:
        while not self._closed:
            if not self._connection.wait(until):
                return [], 0, Page(b'{"jobs":[]}', "jobs"), []  # type: ignore[return-value]
            found = self._jobs(self._connection.events)
            if found is not None:
                return found
        return None

    def _jobs(self, events: deque[Event]) -> _Jobs | None:
        event = events.popleft()
        if event.kind == "stream":
            self._stream, self._held = json.loads(event.data)["stream"], None
        elif event.kind == "job":
            if any(later.kind == "stream" for later in events):
                # The server has given back the jobs of a stream that has ended.
                return None
            claimed = jobs_of(b'{"jobs":[%b]}' % event.data, "jobs")
            if self._held is None and self._stream is not None:
                hold = self._queue._remote.leases.hold_stream
                self._held = hold(self._queue._name, self._node, claimed[1], int(self._stream))
            return self._queue._held(self._node, claimed)
        elif event.kind == "error":
            self._connection.drop()
            self._caller.pause(json.loads(event.data))
        return None

    def close(self) -> None:
        """Ends it; the server gives unacked jobs back. Idempotent."""
        is_first, self._closed = not self._closed, True
        self._held = None
        if is_first and self._stream is not None:
            # Those that arrive no more, or were not returned by `next`, were not delivered.
            body = {"node": self._node, "stream": self._stream}
            with contextlib.suppress(TopicsError):
                self._caller.json("release", self._queue._name, body)
        self._scope.cancel()
        self._connection.close()


def extend_renewed(caller: Caller, renewal: _Renewal) -> _Outcome:
    """Renews leases as a schedule asks for it."""
    _, queue, node, lease_ms, seqs, ids, stream = renewal
    named = {"seqs": seqs, "lease_ids": ids} if stream is None else {"stream": str(stream)}
    body = {"node": node, "lease_ms": lease_ms, **named}
    answer = caller.json("extend", queue, body)
    return outcome_of(done_of(seqs, answer["skipped"]), answer)
