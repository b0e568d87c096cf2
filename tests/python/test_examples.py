"""The examples of the documentation run, and show what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LAST_LINE = {
    "aggregate": "111 withdrawals, 49 refused, ",
    "exactly_once": "120 orders, 120 invoices, by ",
    "fan_out": "shipping.eu: 50 orders worth 12500",
    "job_queue": "200 jobs done, ",
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LAST_LINE)


@pytest.mark.parametrize("name", LAST_LINE)
def test_example(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(LAST_LINE[name])
