"""Handles whose verbs are awaited."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _isolated(isolated: None) -> None:
    pass
