"""What tests print is their figures: the run shows them at its end, though they passed."""

from __future__ import annotations

import pytest

from .gate import GATE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves `slow` tests out of the quick gate, unless their file or name is asked for."""
    if GATE != "quick" or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if "slow" in item.keywords]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if "slow" not in item.keywords]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each line that a passed test has printed."""
    passed = [r for r in terminalreporter.getreports("passed") if r.when == "call" and r.capstdout]
    if passed:
        terminalreporter.section("figures")
    for report in passed:
        name = report.nodeid.rpartition("/")[2]
        for line in report.capstdout.splitlines():
            terminalreporter.write_line(f"{name}: {line}")
