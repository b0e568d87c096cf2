"""Sizes with units, for settings, options and arguments."""

from __future__ import annotations

import re

UNITS: dict[str, int] = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
"""Bytes of each unit: `kB` is 1000, `KiB` is 1024. Upper and lower case are the same."""

_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([a-z]+)", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """The bytes of text like `"64MiB"`, `"1.5GB"`; `None` if it is no size with a unit.

    A part of a byte counts as a byte.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = UNITS.get(found[3].lower()) if found else None
    if found is None or unit is None:
        return None
    part: str = found[2] or ""
    return -(-int(found[1] + part) * unit // int(10 ** len(part)))
