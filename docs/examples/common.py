"""Where an example works: in a directory, or on a server. The handles are the same."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable

import topics_engine as te


def opened(where: str) -> te.Database:
    """The directory, in this process; or the server, if it is a URL."""
    return te.connect(where) if "://" in where else te.open(where)


def run(main: Callable[[str], None]) -> None:
    """Runs it where the command line says, or in a directory that goes with it."""
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
