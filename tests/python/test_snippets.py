"""What the pages of the site show is run, page by page, in the order in which it stands there.

The language of a fence says what becomes of it:

* `python` is run; the snippets of a page share their names. A `text` fence right behind one is what
  it prints.
* `sh` is run by bash. `console` is too: `$ ` begins a command, what follows is what it prints.
* `title="name"` writes the fence into a file of that name instead, for a later snippet.
* `{ .python .not-run }` (of any language) is not run. Other languages are not looked at.

A command that serves runs until the end of the page. Ports are replaced by free ones. In what is
printed `…` stands for anything.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.ports import free_port
from support.snippets import DOCS, Snippet, snippets
from support.waiting import until
from topics_engine.client.database import close_all

WITH_SPARK = {DOCS / "guides" / "lake.md"}
"""Pages that need Spark: its tests run them."""
PAGES = sorted(
    [DOCS / "index.md", DOCS / "quickstart.md"]
    + [
        page
        for part in ("concepts", "guides", "reference")
        for page in (DOCS / part).glob("*.md")
        if page not in WITH_SPARK
    ]
)
SERVES = re.compile(r"(\w+=\S+ )*(topics serve|uvicorn) ")
PORT = re.compile(r"\b(4000|8000|8001)\b")


def status(port: int) -> int | None:
    """What a server answers, if it does."""
    probe = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(probe), contextlib.suppress(OSError, http.client.HTTPException):
        probe.request("GET", "/readyz")
        return probe.getresponse().status
    return None


def is_shipped(metrics: dict[str, Any]) -> bool:
    return metrics["remote_rounds"] > 0 and metrics["remote_lag_seconds"] == 0


class Reader:
    """Somebody who types what a page says into one directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.ports = {port: str(free_port()) for port in ("4000", "8000", "8001")}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("TOPICS_")}
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env["COLUMNS"] = "100"
        # Other plugins take seconds to load.
        self.env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

    def do(self, snippet: Snippet) -> None:
        text = PORT.sub(lambda m: self.ports[m[0]], snippet.text)
        if snippet.title is not None:
            (self.home / snippet.title).write_text(text)
        elif snippet.language == "python":
            self.python(text, snippet)
        elif snippet.language == "sh":
            self.shell(text)
        else:
            self.console(text)

    def python(self, text: str, snippet: Snippet) -> None:
        out = io.StringIO()
        # Lines as they are on the page, for tracebacks.
        padded = "\n" * snippet.line + text
        with contextlib.redirect_stdout(out):
            exec(compile(padded, "page", "exec"), self.names)
        if snippet.expected is not None:
            compare(out.getvalue(), snippet.expected)

    def console(self, text: str) -> None:
        for session in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, printed = re.sub(r"\\\n\s*", "", session).partition("\n")
            out = self.shell(command)
            if printed.strip():
                compare(out, printed)

    def shell(self, command: str) -> str:
        if SERVES.match(command):
            self.serve(command)
            return ""
        done = subprocess.run(
            ["bash", "-eu", "-c", command],
            cwd=self.home,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, command: str) -> None:
        """Starts it, and waits until it answers."""
        # What stood behind it would not be checked, and a server of a shell would outlive the test.
        assert not re.search(r"[&\n]", command.strip()), command
        number = re.search(r"--port[= ](\d+)", command)
        port = int(number[1] if number else self.ports["4000"])
        env = self.env | {"TOPICS_PORT": str(port)}
        server = subprocess.Popen(["bash", "-c", f"exec env {command}"], cwd=self.home, env=env)
        self.servers.append(server)
        deadline = time.monotonic() + 120
        while True:
            assert server.poll() is None, f"{command} ended with {server.returncode}"
            assert time.monotonic() < deadline, f"{command}: no answer on {port}"
            # An application has no such path: then it serves.
            if status(port) in (200, 404):
                break
            time.sleep(0.02)
        if "TOPICS_REMOTE_URL" in command:
            # While it checks a new store, which a folder stands for, other processes are refused.
            with te.connect(f"http://127.0.0.1:{port}") as db:
                until(lambda: is_shipped(db.metrics()), 60)
        self.names["SERVER_PID"] = server.pid

    def leave(self) -> None:
        close_all()
        # Not imported by a page without tracing.
        if tracing := sys.modules.get("topics_engine.otel"):
            tracing.uninstrument()
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        for server in self.servers:
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(60)


def compare(printed: str, expected: str) -> None:
    """Line by line, white space apart."""
    found = [" ".join(line.split()) for line in printed.strip().splitlines()]
    wanted = [" ".join(line.split()) for line in expected.strip().splitlines()]
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in wanted]
    same = len(found) == len(patterns) and all(map(re.fullmatch, patterns, found))
    assert same, f"printed:\n{printed}\nthe page says:\n{expected}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_page(page: Path, tmp_path: Path, monkeypatch: Any) -> None:
    found = [snippet for snippet in snippets(page) if snippet.runs]
    for name in {s.title for s in found if s.title}:
        stem = Path(name).stem
        assert any(stem in s.text for s in found if s.title is None), f"nothing uses {name}"
    monkeypatch.chdir(tmp_path)
    # Polars sets it at its first import.
    monkeypatch.setenv("_RJEM_MALLOC_CONF", "")
    reader = Reader(tmp_path)
    try:
        for snippet in found:
            try:
                reader.do(snippet)
            except BaseException as error:
                error.add_note(f"{page.relative_to(DOCS)}:{snippet.line}")
                raise
    finally:
        reader.leave()


def test_how_many_run() -> None:
    """Snippets by language, and those that are marked as not to be run."""
    run: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for page in PAGES:
        for snippet in snippets(page):
            if snippet.language in ("python", "sh", "console"):
                (run if snippet.runs else left)[snippet.language] += 1
    assert run["python"] >= 40
    assert run["sh"] + run["console"] >= 15
    print(f"{len(PAGES)} pages; run: {dict(run)}; marked as not run: {dict(left)}")
