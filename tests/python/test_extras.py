"""What needs an extra says which, wherever it is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.server import Server

PROGRAM = """
import asyncio, sys
url, missing, *calls = sys.argv[1:]
sys.modules[missing] = None
import topics_engine as te
from topics_engine.cli import main

db = te.open(":memory:")
t = db.topic("t")
t.append(1)

async def aio():
    async with te.aio.connect(url) as far:
        await far.topic("t").append(1)

class Table:
    def __arrow_c_stream__(self, requested_schema=None):
        raise NotImplementedError

for call in calls:
    try:
        code = eval(call)
    except ModuleNotFoundError as error:
        print(error)
    else:
        assert code == 1, (call, code)
db.close()
"""

APPEND = "te.connect(url).topic('t').append(1)"
SERVE = ("main(['--data-dir', 'served', 'serve', '--port', '0'])", "server", "serve")
CASES = {
    "pyarrow": [
        ("t.read().to_arrow()", "arrow", "to_arrow"),
        ("t.append_arrow(Table())", "arrow", "append of a table"),
        ("te.duckdb.attach(None, db)", "duckdb", "duckdb.attach"),
        ("te.connect(url).scan('t')", "arrow", "scan of a server"),
        ("te.connect(url).topic('t').append_arrow(Table())", "arrow", "append of a table"),
        # Where pandas is missing too, that is what is named.
        *([("t.read().to_pandas()", "pandas", "to_pandas")] if find_spec("pandas") else []),
        (
            f"{APPEND} and main(['--url', url, 'export', 't', 't.parquet'])",
            "arrow",
            "arrow and parquet",
        ),
    ],
    "pandas": [("t.read().to_pandas()", "pandas", "to_pandas")],
    "polars": [
        ("t.read().to_polars()", "polars", "to_polars"),
        ("t.lazy()", "polars", "lazy"),
    ],
    "urllib3": [
        ("te.connect(url)", "client", "connect"),
        ("main(['--url', url, 'ls'])", "client", "connect"),
    ],
    "aiohttp": [("asyncio.run(aio())", "client", "aio.connect")],
    "greenlet": [("asyncio.run(aio())", "client", "aio.connect")],
    "opentelemetry.trace": [
        ("te.otel.instrument()", "otel", "otel.instrument"),
        ("te.otel.process(t)", "otel", "otel.process"),
    ],
    **{name: [SERVE] for name in ("uvicorn", "uvloop", "httptools", "h2", "websockets")},
}


@pytest.mark.parametrize("missing", CASES)
def test_a_missing_extra_is_named(tmp_path: Path, hot_server: Server, missing: str) -> None:
    calls = [call for call, _, _ in CASES[missing]]
    command = [sys.executable, "-c", PROGRAM, hot_server.url, missing, *calls]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert sorted(done.stdout.replace("topics: ", "").splitlines()) == sorted(
        f"{use} needs {missing}: pip install 'topics-engine[{extra}]'"
        for _, extra, use in CASES[missing]
    )
