"""The examples of the documentation run, and show what they say."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.server import Server

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LAST_LINE = {
    "aggregate": "111 withdrawals, 49 refused, ",
    "exactly_once": "120 orders, 120 invoices, by ",
    "fan_out": "shipping.eu: 50 orders worth 12500",
    "job_queue": "200 jobs done, ",
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*LAST_LINE, "common"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "served") as live:
        yield live


@pytest.fixture(params=["directory", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "data")
    live: Server = request.getfixturevalue("server")
    return live.url


@pytest.mark.parametrize("name", LAST_LINE)
def test_example(name: str, where: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(LAST_LINE[name])


def test_the_first_lines_of_the_page(where: str, tmp_path: Path, monkeypatch: Any) -> None:
    """They run as they stand there, over both; what they name besides is made here."""
    page = (EXAMPLES.parent / "python.md").read_text()
    block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    plain, looped = block.split("\n\n")
    monkeypatch.chdir(tmp_path)
    done: list[Any] = []

    def prepare(db: te.Database) -> dict[str, Any]:
        """Just before the transaction."""
        db.topic("out").append(list(range(41)))
        db.queue("jobs").append("in a transaction")
        (job,) = db.queue("jobs").claim("worker-1")
        return {"job": job}

    served = "://" in where
    lines = plain.replace("te.open", "te.connect").replace("./topics-data", where, 1)
    if served:
        plain = lines.replace("./topics-data", str(tmp_path / "served"))
    before = "    with db.transaction()"
    plain = plain.replace(before, f"    globals().update(prepare(db))\n{before}")
    with te.connect(where) if served else te.open("./topics-data") as db:
        db.queue("jobs", max_deliveries=5, dead_letter="jobs.dead").append(["a", "b"])
    known = {"te": te, "noon": 0, "seq": 2, "rows": [{"id": 3}], "work": done.append}
    exec(plain, known | {"prepare": prepare, "known": known})
    assert done == ["a", "b"]
    with te.connect(where) if served else te.open("./topics-data") as db:
        assert (db.topic("out").state().head_seq, db.topic("jobs").state().count) == (42, 0)
        assert db.topic("orders").consumer("billing").cursor == 2
        assert db.topic("orders").state().count == 1
        assert db.router("orders.audit").state().dest == "audit"
        for n in range(9):
            db.topic("events").append_batch(
                [b"%d" % i for i in range(n * 10_000, n * 10_000 + 10_000)]
            )

    class Enough(Exception):
        pass

    def handle(item: te.Record) -> None:
        done.append(item.seq)
        if len(done) == 12:
            raise Enough

    looped = looped.replace("http://127.0.0.1:4000", where if served else "./topics-data")
    if not served:
        looped = looped.replace("te.aio.connect", "te.aio.open").replace(', api_key="s3cret"', "")
    known |= {"handle": handle}
    exec("async def run():\n" + textwrap.indent(looped, "    "), known)
    with pytest.raises(Enough):
        asyncio.run(known["run"]())  # type: ignore[operator]
    assert done[2:] == list(range(88131, 88141))


def test_what_the_page_says_of_a_server(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "python.md").read_text().partition("## A server")[2]
    plain, looped = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with Server(tmp_path / "data", env={"TOPICS_API_KEYS": "s3cret"}) as server:
        known = {"te": te, "url": server.url}
        exec(plain, known)
        body = "async def run():\n" + textwrap.indent(looped, "    ")
        exec(body, known)
        asyncio.run(known["run"]())  # type: ignore[operator]


def test_an_import_brings_no_http_client() -> None:
    look = "import sys, topics_engine; print({'urllib3', 'aiohttp', 'greenlet'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "set()\n"
