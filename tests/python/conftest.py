"""What tests print is their figures: the run shows them at its end, though they passed."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each line that a passed test has printed."""
    passed = [r for r in terminalreporter.getreports("passed") if r.when == "call" and r.capstdout]
    if passed:
        terminalreporter.section("figures")
    for report in passed:
        name = report.nodeid.rpartition("/")[2]
        for line in report.capstdout.splitlines():
            terminalreporter.write_line(f"{name}: {line}")
