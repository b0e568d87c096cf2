"""A terminal for tests of the command line."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

Run = Callable[..., tuple[int, list[Any]]]
"""Runs a command; its exit code and the JSON lines it printed."""


class Terminal(io.StringIO):
    """Output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True
