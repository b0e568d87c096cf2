"""A consumer of a server, which stores the cursor.

An `at_least_once` handle keeps its read position, like an embedded one, and sends it in each read:
a read whose response was lost is repeated and returns the same records. For `at_most_once` the
server stores the cursor before it returns records: the records of a lost response are lost, and
this is logged.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..client.backend import RemoteBackend
from ..client.consumer_verbs import ConsumerVerbs
from ..client.encoding import matcher
from ..client.page import Page
from ..client.request import encode_json, without_none
from ..errors import NotFound
from .caller import CallStatus, WaitBudget, log
from .queue import LONGEST

if TYPE_CHECKING:
    from .backend import HttpBackend


class RemoteConsumer(ConsumerVerbs, RemoteBackend):
    """A reader with a stored cursor."""

    def __init__(
        self,
        remote: HttpBackend,
        topic: str,
        name: str,
        mode: str | None,
        start: str,
        auto_commit: bool,
    ) -> None:
        super().__init__(remote, topic, name, mode, start, auto_commit)
        self._remote = remote
        self._auto_commit = auto_commit
        self._lock = threading.Lock()
        # The server raises it to the cursor at which the first read takes the consumer over.
        self._position = 0
        self._dropped = False

    def read(
        self,
        max_bytes: int,
        max_records: int,
        checkpoint: bool,
        wait: float,
        match: str | None,
        fail_if_busy: bool,
    ) -> Page:
        once = self.mode == "at_most_once" and checkpoint
        budget = WaitBudget(wait)
        while True:
            this = budget.next_wait(LONGEST)
            if once:
                page = self._hand_out(max_bytes, max_records, this, match, fail_if_busy)
            else:
                page = self._look(max_bytes, max_records, checkpoint, this, match)
            if len(page) or page.tombstone is not None or budget.is_spent:
                return page

    def _look(
        self, max_bytes: int, max_records: int, checkpoint: bool, wait: float, match: str | None
    ) -> Page:
        if self._dropped:
            message = f"consumer {self.name!r} of {self.topic!r} was deleted"
            raise NotFound(message, "consumer_not_found")
        if checkpoint and self._auto_commit and self._position > self.cursor:
            self.commit(self._position)
        position = self._position
        page = self._page(
            CallStatus(),
            wait,
            max_bytes=max_bytes,
            max_records=max_records,
            match=matcher(match),
            checkpoint=None if checkpoint else False,
            reader=self.reader,
            after=None if self.reader is None else position,
        )
        with self._lock:
            self.check(page)
            # If another thread has moved the position meanwhile, its value stays.
            if checkpoint and self._position == position:
                self._position = page.next_from_seq
        return page

    def _hand_out(
        self, max_bytes: int, max_records: int, wait: float, match: str | None, busy: bool
    ) -> Page:
        status = CallStatus()
        page = self._page(
            status,
            wait,
            max_bytes=max_bytes,
            max_records=max_records,
            match=matcher(match),
            fail_if_busy=busy or None,
        )
        if status.outcome_unknown:
            log.warning("consumer %s of %s: a batch may be lost", self.name, self.topic)
        self._cursor = max(self._cursor, page.next_from_seq)
        return page

    def _page(self, status: CallStatus, wait: float, **fields: Any) -> Page:
        body = encode_json(without_none(wait_ms=round(wait * 1000) or None, **fields))
        call = self._remote.caller.call
        how: dict[str, Any] = {"part": self.name, "wait": wait, "status": status}
        return Page(call("consumer_read", self.topic, body, **how))

    def committed(self, seq: int) -> None:
        """A transaction has stored the cursor."""
        self._cursor = max(self._cursor, seq)

    def seek(self, *, seq: int | None = None, ts: int | None = None, to: str | None = None) -> int:
        cursor = super().seek(seq=seq, ts=ts, to=to)
        # Not while it waits for the server: a task of the same loop may need the lock.
        with self._lock:
            self._position = cursor
        return cursor

    def drop(self) -> bool:
        self._dropped = True
        return super().drop()
