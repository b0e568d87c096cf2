"""The examples of the documentation run, and show what they say."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import topics_engine as te
from benches.demo.server import Server

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


def test_what_the_page_says_of_a_server(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "python.md").read_text().partition("## A server")[2]
    plain, looped = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    server = Server(tmp_path / "data", env={"TOPICS_API_KEYS": "s3cret"})
    server.start()
    try:
        known = {"te": te, "url": server.url}
        exec(plain, known)
        body = "async def run():\n" + textwrap.indent(looped, "    ")
        exec(body, known)
        asyncio.run(known["run"]())  # type: ignore[operator]
    finally:
        server.ensure_dead()


def test_an_import_brings_no_http_client() -> None:
    look = "import sys, topics_engine; print({'urllib3', 'aiohttp', 'greenlet'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
