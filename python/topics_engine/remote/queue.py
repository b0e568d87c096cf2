"""The jobs of a queue of a server.

A claim whose response was lost is repeated; the jobs that it leased become ready when their leases
expire. An ack with an expired lease changes nothing, so acks are safe to repeat.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from ..client.backend import RemoteBackend
from ..client.closing import CancelScope
from ..client.encoding import matcher
from ..errors import Closed, TopicsError
from .caller import CallStatus, WaitBudget, encode_json, topic_path, with_query, without_none
from .events import Event, SseConnection
from .page import Page, jobs_of, lease_number
from .transport import Stream

if TYPE_CHECKING:
    from .._core import _Jobs, _Outcome, _PeekedJobs
    from .backend import HttpBackend

# Seconds that one claim waits at most; a longer wait is several claims.
LONGEST = 20.0


class RemoteQueue(RemoteBackend):
    """A queue by name."""

    def __init__(self, remote: HttpBackend, topic: str) -> None:
        self._remote = remote
        self._caller = remote.caller
        self._topic = topic

    def claim(
        self, node: str, max: int = 1, lease_ms: int | None = None, wait: float = 0.0
    ) -> _Jobs:
        budget = WaitBudget(wait)
        while True:
            this = budget.next_wait(LONGEST)
            body = without_none(
                node=node, max=max, lease_ms=lease_ms, wait_ms=round(this * 1000) or None
            )
            path = topic_path(self._topic, "claim")
            found = jobs_of(
                self._caller.call("POST", path, encode_json(body), wait=this), "claimed"
            )
            if found[0] or budget.is_spent:
                return found

    def peek(self, state: str | None = None, max: int = 100) -> _PeekedJobs:
        path = with_query(topic_path(self._topic, "jobs"), state=state, max=max)
        page = Page(self._caller.call("GET", path), "jobs")
        seen = [_peeked(json.loads(more)) for more in page.more]
        return seen, page  # type: ignore[return-value]

    def ack(self, node: str, seqs: list[int], lease_ids: list[int] | None = None) -> _Outcome:
        status = CallStatus()
        done, skipped, until = self._resolve("ack", "acked", node, seqs, lease_ids, status)
        if status.outcome_unknown and skipped:
            # The lost ack may have been executed: then the job is gone.
            gone = [seq for seq in skipped if not self._exists(seq)]
            done, skipped = done + gone, [seq for seq in skipped if seq not in gone]
        return done, skipped, until

    def nack(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        delay_ms: int | None = None,
        error: str = "",
    ) -> _Outcome:
        status = CallStatus()
        how = {"delay_ms": delay_ms} | without_none(error=error or None)
        done, skipped, until = self._resolve("nack", "nacked", node, seqs, lease_ids, status, how)
        if status.outcome_unknown:
            # In both cases this worker no longer has the leases.
            done, skipped = done + skipped, []
        return done, skipped, until

    def extend(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        lease_ms: int | None = None,
    ) -> _Outcome:
        how = without_none(lease_ms=lease_ms)
        return self._resolve("extend", "extended", node, seqs, lease_ids, CallStatus(), how)

    def _resolve(
        self,
        verb: str,
        member: str,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None,
        status: CallStatus,
        how: dict[str, Any] | None = None,
    ) -> _Outcome:
        body = without_none(node=node, seqs=seqs, lease_ids=lease_ids) | (how or {})
        path = topic_path(self._topic, verb)
        answer = json.loads(self._caller.call("POST", path, encode_json(body), status=status))
        deadlines = answer.get("deadlines") or {}
        done = _without(seqs, answer["skipped"])
        if len(done) != answer[member]:
            raise TopicsError(
                f"{verb} of {len(seqs)} jobs: the server counts {answer[member]} {member} and "
                f"names {len(answer['skipped'])} as skipped"
            )
        return done, answer["skipped"], next(iter(deadlines.values()), None)

    def remove(self, seqs: list[int], force: bool = False) -> _Outcome:
        return self._manage("remove", "removed", seqs, force=force or None)

    def promote(self, seqs: list[int]) -> _Outcome:
        return self._manage("promote", "promoted", seqs)

    def _manage(self, verb: str, member: str, seqs: list[int], **how: Any) -> _Outcome:
        path = topic_path(self._topic, verb)
        body = without_none(seqs=seqs, **how)
        # A repeat whose first answer was lost would name as skipped what the first one did.
        answer = self._caller.json("POST", path, body, repeatable=False)
        return _without(seqs, answer["skipped"]), answer["skipped"], None

    def _exists(self, seq: int) -> bool:
        page = self._remote.read(self._topic, after=seq - 1, limit=1)
        return len(page) > 0 and page[0][0] == seq

    def redrive(
        self,
        to: str | None = None,
        match: str | None = None,
        seqs: list[int] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        body = without_none(
            to=to, match=matcher(match), seqs=seqs, limit=limit, dry_run=dry_run or None
        )
        path = topic_path(self._topic, "redrive")
        # A repeat with a limit would move as many jobs again.
        answer = self._caller.json("POST", path, body, repeatable=limit is None)
        return int(answer["moved"])

    def work(self, node: str, max: int = 1, lease_ms: int | None = None) -> RemoteJobStream:
        return RemoteJobStream(self, node, max, lease_ms)


class RemoteJobStream(RemoteBackend):
    """A stream of jobs. If it breaks, the server gives its jobs back, and a new one is opened."""

    def __init__(self, leases: RemoteQueue, node: str, max: int, lease_ms: int | None) -> None:
        self._caller = leases._caller
        beat = min(60_000, 1000 if (ms := self._caller.options.heartbeat * 1000) < 1000 else ms)
        path = topic_path(leases._topic, "work")
        how = {"node": node, "max": max, "lease_ms": lease_ms, "heartbeat_ms": round(beat)}
        self._path = with_query(path, **how)
        self._connection = SseConnection(self._open, self._caller.options.heartbeat)
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
                return [], 0, Page(b'{"jobs":[]}', "jobs")  # type: ignore[return-value]
            found = self._jobs(self._connection.events)
            if found is not None:
                return found
        return None

    def _jobs(self, events: deque[Event]) -> _Jobs | None:
        event = events.popleft()
        if event.kind == "job":
            return jobs_of(b'{"jobs":[%b]}' % event.data, "jobs")
        if event.kind == "error":
            self._connection.drop()
            told = json.loads(event.data)
            self._caller.transport.sleep(min(2.0, told.get("retry_after_ms", 100) / 1000))
        return None

    def close(self) -> None:
        """Ends it; the server gives unacked jobs back. Idempotent."""
        self._closed = True
        self._scope.cancel()
        self._connection.close()


def _peeked(job: dict[str, Any]) -> Any:
    lease_id = job.get("lease_id")
    return (
        job["state"],
        job["deliveries"],
        job.get("node"),
        None if lease_id is None else lease_number(lease_id),
        job.get("deadline"),
        job.get("visible_at"),
        job["lane"],
        job.get("group"),
        job.get("error"),
    )


def _without(seqs: list[int], skipped: list[int]) -> list[int]:
    """The seqs that were not skipped; of one named twice, the server may skip the second."""
    left = Counter(skipped)
    done = []
    for seq in reversed(seqs):
        if left[seq]:
            left[seq] -= 1
        else:
            done.append(seq)
    return done[::-1]
