"""The verbs of a consumer, over a transport."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import NotFound
from .request import without_none

if TYPE_CHECKING:
    from .._core import _Page
    from .backend import Backend


class ConsumerVerbs:
    """A reader with a stored cursor. It is created if it does not exist."""

    def __init__(
        self,
        backend: Backend,
        topic: str,
        name: str,
        mode: str | None,
        start: str,
        auto_commit: bool,
    ) -> None:
        self._backend = backend
        self.topic = topic
        self.name = name
        reader = os.urandom(8).hex()
        made = self._answer(
            "consumer_put", mode=mode, start=start, auto_commit=auto_commit or None, reader=reader
        )
        self.mode: str = made["mode"]
        self.reader: str | None = reader if self.mode == "at_least_once" else None
        """The id of this handle: an `at_least_once` consumer has one reader at a time."""
        self._cursor: int = made["cursor"]
        self._topic_id: int | None = None

    def _answer(self, verb: str, **fields: Any) -> dict[str, Any]:
        return self._backend.answer(verb, self.topic, without_none(**fields), part=self.name)

    @property
    def cursor(self) -> int:
        """The stored cursor, as far as this handle knows it."""
        return self._cursor

    def read(
        self,
        max_bytes: int,
        max_records: int,
        checkpoint: bool,
        wait: float,
        match: str | None,
        fail_if_busy: bool,
    ) -> _Page:
        """Reads records after the position of the reader; without `checkpoint` it stays."""
        raise NotImplementedError

    def check(self, page: _Page) -> None:
        """Refuses a page of another topic of the name."""
        if self._topic_id not in (None, page.topic_id):
            message = f"topic {self.topic!r} was deleted and created again: open a new handle"
            raise NotFound(message, "topic_not_found")
        self._topic_id = page.topic_id

    def commit(self, seq: int) -> None:
        """Stores the cursor."""
        self._cursor = self._answer("consumer_commit", seq=seq, reader=self.reader)["cursor"]

    def seek(self, *, seq: int | None = None, ts: int | None = None, to: str | None = None) -> int:
        """Sets the cursor: a seq, before a time (epoch ms), or to `start` or `end`."""
        answer = self._answer("consumer_seek", seq=seq, ts=ts, to=to, reader=self.reader)
        self._cursor = answer["cursor"]
        return self._cursor

    def drop(self) -> bool:
        """Deletes the consumer; whether there was one."""
        return self._backend.delete_consumer(self.topic, self.name)
