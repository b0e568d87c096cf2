"""Optional dependencies: extras install them, and modules import them on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, use: str) -> Iterator[None]:
    """A block that imports what the extra `name` installs.

    Raises:
        ModuleNotFoundError: with the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("topics_engine"):
            raise
        what = f"{use} needs {missing.name}: pip install 'topics-engine[{name}]'"
        raise ModuleNotFoundError(what, name=missing.name) from None
