"""What only some programs use is installed with an extra, and imported where it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, use: str) -> Iterator[None]:
    """Imports what the extra `name` installs; where it is missing, the error says what to install.

    Raises `ModuleNotFoundError`.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("topics_engine"):
            raise
        what = f"{use} needs {missing.name}: pip install 'topics-engine[{name}]'"
        raise ModuleNotFoundError(what, name=missing.name) from None
