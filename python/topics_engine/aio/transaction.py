"""Transactions: rows for several topics, cursors and acks, all or nothing."""

from __future__ import annotations

from ..client import transaction as plain
from ..client.transaction import Committed
from .handle import AsyncHandle, passthrough, runner_of


class Transaction(AsyncHandle[plain.Transaction]):
    """What happens when the `async with` block ends: all of it or, on an exception, nothing.

    Nothing is staged before, so only the end is awaited. Topics that get rows take no other writes
    while the commit runs.
    """

    __slots__ = ()

    @property
    def result(self) -> Committed | None:
        """What the commit answered, once it has."""
        return self._sync.result

    append = passthrough(plain.Transaction.append)
    commit = passthrough(plain.Transaction.commit)
    ack = passthrough(plain.Transaction.ack)

    async def __aenter__(self) -> Transaction:
        self._sync._check_open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            await runner_of(self._sync._native).run(self._sync._send)
        self._sync._ended = True
