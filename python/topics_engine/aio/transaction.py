"""Transactions: rows for several topics, cursors and acks, all or nothing."""

from __future__ import annotations

from ..client import transaction as plain
from ..client.transaction import Committed
from .handle import AsyncHandle, passthrough


class Transaction(AsyncHandle[plain.Transaction]):
    """Collects rows, commits and acks; the end of the `async with` block sends them, all or
    nothing.

    Nothing is sent before, so only the end of the block is awaited.
    """

    __slots__ = ()

    @property
    def result(self) -> Committed:
        """The result, once the block has ended; see `topics_engine.Transaction.result`."""
        return self._sync.result

    append = passthrough(plain.Transaction.append)
    commit = passthrough(plain.Transaction.commit)
    ack = passthrough(plain.Transaction.ack)

    async def __aenter__(self) -> Transaction:
        self._sync._check_open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            await self._runner().run(self._sync._send)
        self._sync._ended = True
