"""The jobs of a queue of a server.

A claim whose answer is lost is made again; what it had leased is claimable when the lease runs out.
What is done with a lease that has run out changes nothing, so that acks are safe to repeat.
"""

from __future__ import annotations

import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ..client.backend import Elsewhere
from ..client.ending import Ending
from ..errors import Closed
from .caller import Doubt, Left, encoded, given, of_topic, with_query
from .events import Event, Line
from .page import Page, jobs_of
from .wire import Stream

if TYPE_CHECKING:
    from .._core import _Jobs, _Outcome, _PeekedJobs
    from .backend import Remote

# The longest that one claim waits.
LONGEST = 20.0


class Leases(Elsewhere):
    """A queue by name."""

    def __init__(self, remote: Remote, topic: str) -> None:
        self._remote = remote
        self._caller = remote.caller
        self._topic = topic

    def claim(
        self, node: str, max: int = 1, lease_ms: int | None = None, wait: float = 0.0
    ) -> _Jobs:
        left = Left(wait)
        while True:
            this = left.at_most(LONGEST)
            body = given(node=node, max=max, lease_ms=lease_ms, wait_ms=round(this * 1000) or None)
            path = of_topic(self._topic, "claim")
            found = jobs_of(self._caller.call("POST", path, encoded(body), wait=this), "claimed")
            if found[0] or left.over:
                return found

    def peek(self, state: str | None = None, max: int = 100) -> _PeekedJobs:
        path = with_query(of_topic(self._topic, "jobs"), state=state, max=max)
        page = Page(self._caller.call("GET", path), "jobs")
        seen = [_peeked(json.loads(more)) for more in page.more]
        return seen, page  # type: ignore[return-value]

    def ack(self, node: str, seqs: list[int], lease_ids: list[int] | None = None) -> _Outcome:
        doubt = Doubt()
        done, skipped, until = self._settle("ack", "acked", node, seqs, lease_ids, doubt)
        if doubt.there and skipped:
            # An ack that was carried out leaves no job behind.
            gone = [seq for seq in skipped if not self._there(seq)]
            done, skipped = done + gone, [seq for seq in skipped if seq not in gone]
        return done, skipped, until

    def nack(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        delay_ms: int | None = None,
    ) -> _Outcome:
        doubt = Doubt()
        how = {"delay_ms": delay_ms}
        done, skipped, until = self._settle("nack", "nacked", node, seqs, lease_ids, doubt, how)
        if doubt.there:
            # Either way they are held by this worker no more.
            done, skipped = done + skipped, []
        return done, skipped, until

    def extend(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        lease_ms: int | None = None,
    ) -> _Outcome:
        how = given(lease_ms=lease_ms)
        return self._settle("extend", "extended", node, seqs, lease_ids, Doubt(), how)

    def _settle(
        self,
        verb: str,
        member: str,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None,
        doubt: Doubt,
        how: dict[str, Any] | None = None,
    ) -> _Outcome:
        body = given(node=node, seqs=seqs, lease_ids=lease_ids) | (how or {})
        path = of_topic(self._topic, verb)
        answer = json.loads(self._caller.call("POST", path, encoded(body), doubt=doubt))
        deadlines = answer.get("deadlines") or [None]
        return answer[member], answer["skipped"], deadlines[0]

    def _there(self, seq: int) -> bool:
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
        body = given(to=to, match=matcher(match), seqs=seqs, limit=limit, dry_run=dry_run or None)
        path = of_topic(self._topic, "redrive")
        # With a limit a repeat would move as many again.
        answer = self._caller.json("POST", path, body, repeatable=limit is None)
        return int(answer["moved"])

    def work(self, node: str, max: int = 1, lease_ms: int | None = None) -> Flow:
        return Flow(self, node, max, lease_ms)


class Flow(Elsewhere):
    """A stream of jobs. Where it breaks the server gives back what it held, and another follows."""

    def __init__(self, leases: Leases, node: str, max: int, lease_ms: int | None) -> None:
        self._caller = leases._caller
        beat = min(60_000, 1000 if (ms := self._caller.options.heartbeat * 1000) < 1000 else ms)
        path = of_topic(leases._topic, "work")
        how = {"node": node, "max": max, "lease_ms": lease_ms, "heartbeat_ms": round(beat)}
        self._path = with_query(path, **how)
        self._line = Line(self._open, self._caller.options.heartbeat)
        self._closed = False
        self._ending = Ending()

    def _open(self, idle: float) -> Stream:
        until = time.monotonic() + self._caller.options.deadline
        return self._caller.stream(self._path, {}, idle, until)

    def next(self, wait: float = 0.0) -> _Jobs | None:
        """The next jobs, or none when the wait is over; `None` when the stream was closed."""
        try:
            with self._ending.calls():
                return self._next(time.monotonic() + wait)
        except Closed:
            # Closed here: the end. The client was closed: that is an error.
            if not self._closed:
                raise
            return None

    def _next(self, until: float) -> _Jobs | None:
        while not self._closed:
            if not self._line.wait(until):
                return [], 0, Page(b'{"jobs":[]}', "jobs")  # type: ignore[return-value]
            found = self._jobs(self._line.events)
            if found is not None:
                return found
        return None

    def _jobs(self, events: deque[Event]) -> _Jobs | None:
        event = events.popleft()
        if event.kind == "job":
            return jobs_of(event.data, "job")
        if event.kind == "error":
            self._line.drop()
            told = json.loads(event.data)
            self._caller.wire.sleep(min(2.0, told.get("retry_after_ms", 100) / 1000))
        return None

    def close(self) -> None:
        """Ends it: the server gives back what it holds. Idempotent."""
        self._closed = True
        self._ending.end()
        self._line.close()


def _peeked(job: dict[str, Any]) -> Any:
    return (
        job["state"],
        job["deliveries"],
        job.get("node"),
        job.get("lease_id"),
        job.get("deadline"),
        job.get("visible_at"),
        job["lane"],
        job.get("group"),
    )


def matcher(match: str | None) -> Any:
    """A match as bodies have it."""
    if match is None or "*" not in match:
        return match
    return ["tag", "Glob", match]
