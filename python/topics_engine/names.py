"""Hints at what a misspelt name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that is most like it, if any."""
    # Imported here: only a mistake needs it.
    from difflib import get_close_matches

    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""
