"""Requests of verbs: what a transport takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from .. import _core

JSON = "application/json"
TEXT = "text/plain"


class Caller(Protocol):
    """A transport of requests: to the engine of this process, or to a server."""

    def call(
        self,
        verb: str,
        name: str = "",
        body: bytes | None = None,
        *,
        part: str = "",
        query: Mapping[str, Any] | None = None,
        accept: str = JSON,
        long: bool = False,
        repeatable: bool = True,
    ) -> bytes:
        """Sends a request and returns the body of the answer; raises its error.

        Args:
            verb: its name in the table of routes.
            name: the topic or the router.
            body: the body, JSON unless the verb says otherwise.
            part: the consumer, the watch session or the writer.
            query: parameters; those that are `None` are not sent.
            accept: the format of the answer.
            long: the call may take as long as it needs.
            repeatable: executing it twice does no harm.
        """


def path_of(verb: str, name: str = "", part: str = "") -> tuple[str, str]:
    """Method and path of a verb. A list without a name is of all topics."""
    from urllib.parse import quote

    method, path = _template(verb, bool(name))
    return method, path.format(name=quote(name, safe=""), part=quote(part, safe=""))


@cache
def _template(verb: str, is_named: bool) -> tuple[str, str]:
    """The route of a verb whose path names a topic, or does not."""
    found = [
        (method, re.sub(r":\w+", "{part}", re.sub(r":[tqr]\b", "{name}", path)))
        for each, method, path in _core.paths()
        if each == verb
    ]
    return next((route for route in found if ("{name}" in route[1]) == is_named), found[0])


def encode_query(query: Mapping[str, Any] | None) -> str:
    """The parameters of a request that are not `None`."""
    given = {name: _word(value) for name, value in (query or {}).items() if value is not None}
    if all(word.isascii() and word.isalnum() for word in given.values()):
        # What most requests have; a program that has no others does not load `urllib`.
        return "&".join(f"{name}={word}" for name, word in given.items())
    from urllib.parse import urlencode

    return urlencode(given)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def encode_json(body: Any) -> bytes:
    """Encodes a JSON body."""
    return json.dumps(body, separators=(",", ":")).encode()


def without_none(**fields: Any) -> dict[str, Any]:
    """The fields that are not `None`."""
    return {name: value for name, value in fields.items() if value is not None}
