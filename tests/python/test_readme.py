"""What the first page shows runs as it stands there: on a directory, and on a server."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.processes import LIMIT, child
from support.server import Server
from support.waiting import until

README = (Path(__file__).parents[2] / "README.md").read_text()
PLAIN, WORDS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(params=["directory", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Iterator[str | None]:
    """Of a server, or none: then it is ./topics-data."""
    monkeypatch.chdir(tmp_path)
    if request.param == "directory":
        yield None
        return
    with Server(tmp_path / "served") as live:
        yield live.url


def opened(url: str | None) -> te.Database:
    return te.open("./topics-data") if url is None else te.connect(url)


def of(url: str | None, text: str) -> str:
    """The same of a server."""
    if url is None:
        return text
    return re.sub(r"\bopen\(\"\./topics-data\"\)", f"connect({url!r})", text)


def test_in_your_process(url: str | None, capsys: Any) -> None:
    exec(of(url, PLAIN), {})
    assert capsys.readouterr().out.splitlines() == ["1 2 False", "1 {'id': 1}", "2 {'id': 2}"]
    # Again: the key makes it the same write.
    exec(of(url, PLAIN), {})
    assert capsys.readouterr().out.splitlines()[0] == "1 2 True"


def until_closed(statement: str, db: te.Database, **known: Any) -> threading.Thread:
    """A statement that follows something, in a thread that ends when the database is closed."""

    def run() -> None:
        with pytest.raises(te.Closed):
            exec(statement, {"te": te, "db": db, **known})
        ended.append(True)

    ended: list[bool] = []
    thread = threading.Thread(target=run, daemon=True)
    thread.ended = ended  # type: ignore[attr-defined]
    thread.start()
    return thread


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """What is entered is left at the end of the test."""
    with contextlib.ExitStack() as entered:
        yield entered


def test_in_the_same_few_words(url: str | None, stack: contextlib.ExitStack) -> None:
    found = ast.parse(textwrap.dedent(WORDS.replace("async with", "async def f():\n  async with")))
    watch, router, work, transaction, looped = map(ast.unparse, found.body)
    sent: list[Any] = []
    db = stack.enter_context(opened(url))
    orders = db.topic("orders")
    orders.append([te.NewRecord(n, tag=f"{'eu' if n % 2 else 'us'}:{n}") for n in range(4)])
    exec(router, {"db": db})
    db.queue("mails", max_deliveries=5).append("letter")
    threads = [until_closed(watch, db), until_closed(work, db, send=sent.append)]
    until(lambda: sent, 60)
    orders.append(te.NewRecord("new", tag="eu:9"))
    assert db.topic("audit").wait(0, timeout=60)
    db.queue("mails").append("in a transaction")
    jobs = db.queue("others")
    jobs.append("job")
    (job,) = jobs.claim("w")
    known = {"db": db, "rows": [1, 2], "consumer": orders.consumer("c"), "seq": 3, "job": job}
    exec(transaction, known)
    assert db.topic("invoices").state().head_seq == 2
    assert orders.consumer("c").cursor == 3
    assert jobs.state().count == 0
    until(lambda: len(sent) == 2, 60)
    assert sent == ["letter", "in a transaction"]
    db.close()
    for thread in threads:
        thread.join(60)
        assert thread.ended == [True]  # type: ignore[attr-defined]
    # The last line opens by itself.
    loop: dict[str, Any] = {"te": te}
    exec(of(url, looped.replace("'", '"')), loop)
    asyncio.run(loop["f"]())


def test_over_http(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n(curl .*?)```", README, re.DOTALL)
    *curls, tail = re.sub(r"\\\n\s+", " ", block).splitlines()
    assert tail.startswith("topics --url http://localhost:4000 ")
    with Server(tmp_path / "data") as server:
        where = f"127.0.0.1:{server.port}"
        for command in curls:
            told = command.replace("localhost:4000", where).replace("curl ", "curl -sSf ", 1)
            done = subprocess.run(
                ["bash", "-c", told], capture_output=True, text=True, timeout=LIMIT
            )
            assert done.returncode == 0, done.stderr
            assert '"topic":"orders"' in done.stdout.replace(" ", "")
        words = tail.replace("localhost:4000", where).split()[1:]
        command = [sys.executable, "-m", "topics_engine.cli", *words]
        with child(command) as follower:
            assert follower.stdout is not None
            assert '"id":1' in follower.stdout.readline().replace(" ", "")
