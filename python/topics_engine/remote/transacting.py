"""Transactions of a server.

Without a writer a transaction is one request with an idempotency key. With one its rows are staged
and then committed under an epoch. Either way a repeat whose first answer was lost changes nothing,
and gets that answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..client.backend import Elsewhere
from .caller import encoded, given, of_topic
from .page import body_of_rows

if TYPE_CHECKING:
    from .._core import _Acks, _Committed, _Rows
    from .backend import Remote


class Transactions(Elsewhere):
    """The transactions of a server."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._caller = remote.caller
