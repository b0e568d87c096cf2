"""A database per test, in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import topics_engine as te


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("TOPICS_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def db(data_dir: Path) -> Iterator[te.Database]:
    with te.open(data_dir) as opened:
        yield opened
