"""Opens the storage of an example: a directory or a server. The handles are the same."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable

import topics_engine as te


def opened(where: str) -> te.Database:
    """Opens the directory in this process, or connects to the server if it is a URL."""
    return te.connect(where) if "://" in where else te.open(where)


def run(main: Callable[[str], None]) -> None:
    """Runs `main` with the command line's argument, or with a temporary directory."""
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
