"""Type checkers find every mistake in an option, and complain about nothing else."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te

PROGRAMS = Path(__file__).parent / "programs.py"
LINES = PROGRAMS.read_text().splitlines()
MISTAKES = [number for number, line in enumerate(LINES, 1) if line.endswith("# mistake")]
ROOT = Path(__file__).parents[3]


def test_there_is_enough_to_find() -> None:
    functions = [line for line in LINES if re.match(r"(async )?def ", line)]
    assert len(functions) - len(MISTAKES) >= 15
    assert len(functions) >= 30
    assert len(MISTAKES) >= 20


@pytest.mark.slow
def test_mypy_finds_them(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
         f"--cache-dir={tmp_path}", str(PROGRAMS)],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    errors = re.findall(r"programs\.py:(\d+): error: .*", found.stdout)
    assert sorted({int(line) for line in errors}) == MISTAKES, found.stdout + found.stderr


def test_pyright_finds_them(tmp_path: Path) -> None:
    config = {"include": [str(PROGRAMS)], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    found = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(tmp_path),
         "--pythonpath", sys.executable],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    report = json.loads(found.stdout)["generalDiagnostics"]
    said = [(d["range"]["start"]["line"] + 1, d["message"]) for d in report]
    assert sorted({line for line, _ in said}) == MISTAKES, said


def public() -> list[Any]:
    """Every public function and method of the package, with its name."""
    found = []
    for module in (te, te.aio):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                members = vars(value).items()
                found += [(f"{name}.{n}", m) for n, m in members if not n.startswith("_")]
            else:
                found.append((name, value))
    return [(name, value) for name, value in found if callable(value)]


@pytest.mark.parametrize(("name", "value"), public())
def test_nothing_public_takes_any_option(name: str, value: Any) -> None:
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            assert "Unpack[" in str(parameter.annotation), (name, str(parameter))


def test_the_generated_types_are_current() -> None:
    check = [sys.executable, ".ci/typed_options.py", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, cwd=ROOT, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
