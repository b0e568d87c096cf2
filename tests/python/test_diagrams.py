"""The drawn diagrams of the documentation."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def diagrams() -> ModuleType:
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / ".ci" / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_diagram_is_drawn_for_both_schemes(diagrams: ModuleType) -> None:
    sources = diagrams.sources()
    wanted = {diagrams.name_of(source, scheme) for source in sources for scheme in diagrams.SCHEMES}
    assert len(wanted) >= 8
    assert {path.name for path in diagrams.DRAWN.iterdir()} == wanted, "run `make diagrams`"


def test_a_diagram_loads_nothing(diagrams: ModuleType) -> None:
    for path in diagrams.DRAWN.iterdir():
        text = path.read_text()
        assert set(re.findall(r"https?://[^\"'\s)]+", text)) == {"http://www.w3.org/2000/svg"}, path
        assert "<script" not in text
        assert "@import" not in text
