"""Transactions of a server: one request each, which is safe to repeat.

The writer's epoch identifies a transaction, or without a writer an idempotency key. A repeat of a
committed transaction changes nothing and returns the first answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..client.backend import RemoteBackend
from ..client.page import body_of_rows
from ..client.request import encode_json, without_none
from ..errors import NotFound

if TYPE_CHECKING:
    from .._core import _Acks, _Committed, _TxnRows
    from .backend import HttpBackend


class RemoteTransactions(RemoteBackend):
    """The transactions of a server."""

    def __init__(self, remote: HttpBackend) -> None:
        self._remote = remote
        self._caller = remote.caller

    def transact(
        self,
        rows: Sequence[_TxnRows],
        *,
        writer: str | None = None,
        epoch: int | None = None,
        key: str | None = None,
        heads: Sequence[tuple[str, int]] = (),
        commits: Sequence[tuple[str, str, int, Any]] = (),
        acks: Sequence[_Acks] = (),
    ) -> _Committed:
        if writer is not None and epoch is None:
            # Without an epoch the server would assign a new one to each repeat.
            epoch = self._last_epoch(writer) + 1
        named = key if writer is not None or key is not None else self._caller.key()
        fields: dict[str, Any] = without_none(writer=writer, epoch=epoch, idempotency_key=named)
        fields["expect_heads"] = dict(heads)
        fields["commits"] = [
            without_none(topic=topic, consumer=consumer, seq=seq, reader=reader)
            for topic, consumer, seq, reader in commits
        ]
        fields["acks"] = [
            without_none(queue=queue, node=node, seqs=seqs, lease_ids=ids)
            for queue, node, seqs, ids in acks
        ]
        body = b'{"appends":[%b],%b' % (
            b",".join(_append(*group) for group in rows),
            encode_json(fields)[1:],
        )
        answer = json.loads(self._caller.call("txn", body=body))
        for cursor in list(self._remote.cursors):
            for topic, consumer, seq, _ in commits:
                if (cursor.topic, cursor.name) == (topic, consumer):
                    cursor.cursor = max(cursor.cursor, seq)
        topics = [
            (name, at["topic_id"], at["first_seq"], at["last_seq"])
            for name, at in answer["topics"].items()
        ]
        deduped = answer["deduped"] and (key is not None or writer is not None)
        return epoch or 0, deduped, topics

    def forget(self, writer: str) -> bool:
        answer = self._caller.json("txn_forget", part=writer)
        return bool(answer["forgotten"])

    def _last_epoch(self, writer: str) -> int:
        try:
            state = self._caller.json("txn_writer", part=writer)
        except NotFound:
            return 0
        return int(state.get("last_epoch") or 0)


def _append(topic: str, rows: Sequence[Any], node: str | None) -> bytes:
    fields = encode_json(without_none(topic=topic, node=node))[1:-1] + b","
    return body_of_rows(rows, fields)
