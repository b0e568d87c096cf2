"""The verbs of a queue, over a transport."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..errors import TopicsError
from .encoding import matcher
from .page import Page
from .request import without_none
from .values import lease_number

if TYPE_CHECKING:
    from .._core import _Jobs, _Outcome, _PeekedJobs
    from .backend import Backend, JobStream

COUNTS = {"ack": "acked", "nack": "nacked", "release": "released", "extend": "extended"}
"""The member of the answer that counts what a verb did."""


class QueueVerbs:
    """A queue by name."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self._name = name

    def claim(
        self, node: str, max: int = 1, lease_ms: int | None = None, wait: float = 0.0
    ) -> _Jobs:
        """Leases jobs to a worker; their leases are renewed from now on."""
        raise NotImplementedError

    def work(self, node: str, max: int = 1, lease_ms: int | None = None) -> JobStream:
        """A stream of jobs."""
        raise NotImplementedError

    def ack(self, node: str, seqs: list[int], lease_ids: list[int] | None = None) -> _Outcome:
        """Completes jobs."""
        return self._end("ack", node, seqs, lease_ids)

    def nack(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        delay_ms: int | None = None,
        error: str = "",
    ) -> _Outcome:
        """Gives failed jobs back."""
        # No delay is null, the backoff of the queue; an absent one would be 0.
        more = without_none(error=error or None)
        return self._end("nack", node, seqs, lease_ids, delay_ms=delay_ms, **more)

    def release(self, node: str, seqs: list[int], lease_ids: list[int] | None = None) -> _Outcome:
        """Gives back jobs that were not begun."""
        return self._end("release", node, seqs, lease_ids)

    def extend(
        self,
        node: str,
        seqs: list[int],
        lease_ids: list[int] | None = None,
        lease_ms: int | None = None,
    ) -> _Outcome:
        """Renews leases."""
        return self._end("extend", node, seqs, lease_ids, **without_none(lease_ms=lease_ms))

    def _end(
        self, verb: str, node: str, seqs: list[int], lease_ids: list[int] | None, **fields: Any
    ) -> _Outcome:
        body = without_none(node=node, seqs=seqs, lease_ids=lease_ids) | fields
        return self._outcome(verb, seqs, body)

    def _outcome(self, verb: str, seqs: list[int], body: dict[str, Any], **how: Any) -> _Outcome:
        """Sends a verb of leases, and checks that the answer is about each of them."""
        answer = self._backend.answer(verb, self._name, body, **how)
        done, count = done_of(seqs, answer["skipped"]), answer[COUNTS[verb]]
        if len(done) != count:
            raise TopicsError(
                f"{verb} of {len(seqs)} jobs: the server counts {count} {COUNTS[verb]} and "
                f"names {len(answer['skipped'])} as skipped"
            )
        return outcome_of(done, answer)

    def peek(self, state: str | None = None, max: int = 100) -> _PeekedJobs:
        """Jobs by state, without claiming them."""
        query = {"state": state, "max": max}
        page = Page(self._backend.caller.call("jobs", self._name, query=query), "jobs")
        seen = [_peeked(json.loads(more)) for more in page.more]
        return seen, page  # type: ignore[return-value]

    def remove(self, seqs: list[int], force: bool = False) -> _Outcome:
        """Deletes jobs in any state."""
        return self._manage("jobs_remove", seqs, force=force or None)

    def promote(self, seqs: list[int]) -> _Outcome:
        """Makes delayed jobs ready."""
        return self._manage("jobs_promote", seqs)

    def _manage(self, verb: str, seqs: list[int], **how: Any) -> _Outcome:
        body = without_none(seqs=seqs, **how)
        # A repeat whose first answer was lost would name as skipped what the first one did.
        answer = self._backend.answer(verb, self._name, body, repeatable=False)
        return outcome_of(done_of(seqs, answer["skipped"]), answer)

    def redrive(
        self,
        to: str | None = None,
        match: str | None = None,
        seqs: list[int] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Moves dead jobs back; returns how many."""
        body = without_none(
            to=to, match=matcher(match), seqs=seqs, limit=limit, dry_run=dry_run or None
        )
        # A repeat with a limit would move as many jobs again.
        answer = self._backend.answer("redrive", self._name, body, repeatable=limit is None)
        return int(answer["moved"])


def done_of(seqs: list[int], skipped: list[int]) -> list[int]:
    """The seqs that were not skipped; of one named twice, the second may have been."""
    left = Counter(skipped)
    done = []
    for seq in reversed(seqs):
        if left[seq]:
            left[seq] -= 1
        else:
            done.append(seq)
    return done[::-1]


def outcome_of(done: list[int], answer: dict[str, Any]) -> _Outcome:
    """What a verb of leases did."""
    deadlines = answer.get("deadlines") or {}
    until = next(iter(deadlines.values()), None)
    return done, answer["skipped"], until, answer.get("reasons", [])


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
