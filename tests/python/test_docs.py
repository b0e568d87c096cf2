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
from topics_engine.settings import engine_settings

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


def test_every_setting_is_in_the_tables() -> None:
    table = [row for row in rows("reference/settings.md") if row[1].startswith("`TOPICS_")]
    found = {row[0].strip("`"): (row[1].strip("`"), row[2].strip("`")) for row in table}
    shown = {"True": "true", "False": "false", "": "none"}
    known = engine_settings() | SERVER
    assert found == {
        name: (f"TOPICS_{name.upper()}", shown.get(str(setting.default), str(setting.default)))
        for name, setting in known.items()
    }
    assert len(table) == len(found)
    assert all(row[3] for row in table)


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
    known = {name: s.default for name, s in (engine_settings() | SERVER).items()}
    # That of HTTP/2 stands where HTTP/2 does.
    assert f"100 requests open (`{SERVER['max_streams_per_connection'].variable}`)" in page
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
