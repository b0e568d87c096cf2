"""What the demonstrations print, and where they keep their files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def print_line(line: str) -> None:
    print(line, flush=True)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end."""
    # Not in a memory file system, where a sync is free: beside the working directory.
    with tempfile.TemporaryDirectory(prefix="topics-demo-", dir=".") as folder:
        yield Path(folder).absolute()
