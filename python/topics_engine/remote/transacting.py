"""Transactions of a server: one request each, which can be repeated.

With a writer that is by its epoch, without one by an idempotency key. A repeat whose first answer
was lost changes nothing, and gets that answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..client.backend import Elsewhere
from ..errors import NotFound
from .caller import encoded, given
from .page import body_of_rows

if TYPE_CHECKING:
    from .._core import _Acks, _Committed, _TxnRows
    from .backend import Remote


class Transactions(Elsewhere):
    """The transactions of a server."""

    def __init__(self, remote: Remote) -> None:
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
        commits: Sequence[tuple[str, str, int]] = (),
        acks: Sequence[_Acks] = (),
    ) -> _Committed:
        if writer is not None and epoch is None:
            # The server would take the next one at each repeat.
            epoch = self._last_epoch(writer) + 1
        named = key if writer is not None or key is not None else self._caller.key()
        fields: dict[str, Any] = given(writer=writer, epoch=epoch, idempotency_key=named)
        fields["expect_heads"] = dict(heads)
        fields["commits"] = [given(topic=t, consumer=c, seq=seq) for t, c, seq in commits]
        fields["acks"] = [
            given(queue=queue, node=node, seqs=seqs, lease_ids=ids)
            for queue, node, seqs, ids in acks
        ]
        body = b'{"appends":[%b],%b' % (
            b",".join(_append(*group) for group in rows),
            (encoded(fields) or b"")[1:],
        )
        answer = json.loads(self._caller.call("POST", "/v0/txn", body))
        for cursor in list(self._remote.cursors):
            for topic, consumer, seq in commits:
                if (cursor.topic, cursor.name) == (topic, consumer):
                    cursor.cursor = max(cursor.cursor, seq)
        topics = [
            (name, at["topic_id"], at["first_seq"], at["last_seq"])
            for name, at in answer["topics"].items()
        ]
        deduped = answer["deduped"] and (key is not None or writer is not None)
        return epoch or 0, deduped, topics

    def forget(self, writer: str) -> bool:
        answer = self._caller.json("DELETE", f"/v0/txn/{quote(writer, safe='')}")
        return bool(answer["forgotten"])

    def _last_epoch(self, writer: str) -> int:
        try:
            state = self._caller.json("GET", f"/v0/txn/{quote(writer, safe='')}")
        except NotFound:
            return 0
        return int(state.get("last_epoch") or 0)


def _append(topic: str, rows: Sequence[Any], node: str | None) -> bytes:
    fields = (encoded(given(topic=topic, node=node)) or b"")[1:-1] + b","
    return body_of_rows(rows, fields)
