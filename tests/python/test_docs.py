"""The pages say what the code does."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from support.processes import LIMIT, child
from support.server import Server
from topics_engine.asgi.openapi import status_of
from topics_engine.asgi.routes import ROUTES
from topics_engine.asgi.settings import SERVER
from topics_engine.settings import SERVER as KNOWN
from topics_engine.settings import defaults, variable

from .asgi.test_fuzz import STATUS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows(page: str) -> list[list[str]]:
    """Cells of every table row of a page."""
    lines = (DOCS / page).read_text().splitlines()
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]


def test_every_route_is_in_the_table_with_its_access() -> None:
    documented = {
        (path, row[1], row[2])
        for row in rows("http.md")
        for path in re.findall(r"`((?:GET|PUT|POST|DELETE) [^`]+)`", row[0])
        if len(row) == 3
    }
    assert documented == {(f"{r.method} {r.path}", r.summary, r.access) for r in ROUTES}


def test_every_code_is_in_the_table_with_its_status() -> None:
    documented = {
        code: set(map(int, row[0].split(", ")))
        for row in rows("http.md")
        if row[0][:3].isdigit()
        for code in re.findall(r"`([a-z_]+)`", row[1])
    }
    for code, status in STATUS.items():
        assert status <= documented[code], code
    for route in ROUTES:
        for code in route.all_codes:
            assert status_of(code) in documented[code], code


def test_every_setting_is_in_the_table() -> None:
    documented = {
        (row[0].strip("`"), row[1].strip("`"))
        for row in rows("operations.md")
        if len(row) == 4 and row[1].startswith("`TOPICS_")
    }
    assert documented == {(name, variable(name)) for name in [*SERVER, "data_dir"]}
    assert set(SERVER) == KNOWN


def test_every_setting_of_the_engine_is_in_its_table() -> None:
    table = rows("operations.md")
    head = table.index(["of the engine", "default", "meaning"])
    known = defaults()
    del known["data_dir"]
    found = {row[0].strip("`"): row[1] for row in table[head + 2 : head + 2 + len(known)]}
    shown = {True: "true", False: "false"}
    assert found == {
        name: shown[value] if isinstance(value, bool) else str(value) or "none"
        for name, value in known.items()
    }


UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def test_every_limit_is_there_with_its_default() -> None:
    page = (DOCS / "http.md").read_text()
    section = page.partition("## Limits")[2].partition("\n## ")[0]
    documented = {
        f"max_{name.lower()}": int(number) * UNITS[unit or ""]
        for name, number, unit in re.findall(
            r"`(?:TOPICS_MAX)?_([A-Z_]+)`\s+(\d+)(?:\s+([KMG]iB))?", section
        )
    }
    known = {**defaults(), **SERVER}
    # That of HTTP/2 stands where HTTP/2 does.
    assert f"100 requests open (`{variable('max_streams_per_connection')}`)" in page
    limits = {n: v for n, v in known.items() if n.startswith("max_")}
    del limits["max_streams_per_connection"]
    assert documented == limits


def test_every_example_of_curl_works(tmp_path: Path) -> None:
    commands = []
    for page in (DOCS / "http.md", DOCS.parent / "README.md"):
        text = page.read_text().replace("\\\n", " ").replace("localhost:4000", "$URL")
        lines = [line for line in text.splitlines() if line[:5] == "curl "]
        assert lines, page
        commands += lines
    assert len(commands) > 30
    with Server(tmp_path / "data") as server:
        env = {**os.environ, "URL": server.url}
        for command in commands:
            if " -N " in command:
                # A stream has no end of its own.
                streamed = command.replace("curl ", "exec curl -sSf ", 1)
                with child(["bash", "-c", streamed], env=env) as follower:
                    assert follower.stdout is not None
                    assert any("event: record" in line for line in follower.stdout), command
                continue
            limited = command.replace("curl ", "curl -sS -w '\\n%{http_code}' ", 1)
            done = subprocess.run(
                ["bash", "-c", limited], env=env, capture_output=True, timeout=LIMIT
            )
            body, _, status = done.stdout.decode().rpartition("\n")
            assert status in ("200", "201"), (command, body, done.stderr)
            assert done.returncode == 0, (command, done.stderr)
            assert " -o " in command or "error" not in json.loads(body), command
        assert server.stop() == 0
