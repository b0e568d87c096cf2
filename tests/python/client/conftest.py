"""Handles of an engine in this process, and S3 for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gateway import CREDENTIALS, Gateway


@pytest.fixture(autouse=True)
def _isolated(isolated: None) -> None:
    pass


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the gateway in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def gateway(credentials: None, tmp_path: Path) -> Iterator[Gateway]:
    """A real S3 server with one bucket."""
    with Gateway(tmp_path / "s3") as running:
        yield running
