"""Splits JSON text without decoding its values."""

from __future__ import annotations

import json
from collections.abc import Iterator

_DECODER = json.JSONDecoder()


def members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """The members of the JSON object or array at `at`: name (empty in an array), start and end.

    A slice of `text` is the value as it was sent. A value that is decoded and encoded again is not:
    numbers change.
    """
    at = _skip(text, at)
    named = text[at] == "{"
    at = _skip(text, at + 1)
    while text[at] not in "]}":
        name = ""
        if named:
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield name, at, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
