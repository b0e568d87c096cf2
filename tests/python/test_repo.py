"""The repository: its targets, its dependency check, and words that no file may have."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def deps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_deps", ROOT / ".ci" / "check_deps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0", True),
        ("GPL-3.0 OR MIT", True),
        ("MIT AND GPL-3.0", False),
        ("MIT/Apache-2.0", True),
        ("(MIT OR GPL-3.0) AND Apache-2.0", True),
        ("(MIT AND GPL-3.0) OR LGPL-2.1", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0 WITH GCC-exception-3.1", False),
        ("", False),
    ],
)
def test_licence_expressions(deps: ModuleType, expression: str, expected: bool) -> None:
    assert deps.satisfiable(expression, {"MIT", "Apache-2.0"}) is expected


def test_a_denied_version_and_every_older_one_is_found(deps: ModuleType) -> None:
    rules = [{"crate": "x", "below": "1.10.0", "why": "it leaks"}]
    for version, denied in {
        "1.9.9": True,
        "1.10.0": False,
        "2.0": False,
        "1.2.0-rc.1": True,
    }.items():
        assert bool(deps.denials("crate", {"x": version}, rules)) is denied, version
    assert deps.denials("crate", {"y": "0.1"}, rules) == []


def test_make_names_every_target() -> None:
    said = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ["run", "test", "check", "bench", "demo", "test-release", "build", "clean"]:
        assert re.search(rf"^  make {target}  +\S", said, re.MULTILINE), target


def test_files_name_no_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    # Built from parts, so that this file does not name them.
    words = ["/" + "work/", "/" + "root/", "/" + "home/", ".." + "/shared"]
    texts = [
        ROOT / name
        for name in listed.stdout.split()
        if name.endswith((".md", ".py", ".rs", ".toml", ".txt", "Makefile", "run"))
    ]
    found = [f"{p}: {w}" for p in texts if p.exists() for w in words if w in p.read_text()]
    assert found == []
