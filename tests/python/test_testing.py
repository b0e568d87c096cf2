"""`topics_engine.testing`, as a program's own tests use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import topics_engine as te
from topics_engine.testing import Server

PROGRAM = """
import topics_engine as te
from topics_engine.testing import Server

def test_embedded(topics_db: te.Database) -> None:
    assert topics_db.topic("t").append(1).last_seq == 1

def test_embedded_is_of_one_test(topics_db: te.Database) -> None:
    assert list(topics_db.topics()) == []

def test_served(topics_server: Server) -> None:
    with te.connect(topics_server.url) as db:
        assert db.topic("t").append(1).last_seq == 1

def test_the_server_is_shared(topics_server: Server) -> None:
    with te.connect(topics_server.url) as db:
        assert db.topic("t").state().count == 1
"""


def test_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    plugin = ["-p", "topics_engine.testing", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", *plugin, "test_program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "4 passed" in ran.stdout, ran.stdout + ran.stderr


def test_a_server_with_settings_that_is_killed(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", max_topics=1)
    with pytest.raises(RuntimeError, match="call start"):
        server.stop()
    with server:
        with te.connect(server.url) as db:
            db.topic("one", durability="fsync").append(1)
            with pytest.raises(te.Throttled):
                db.topic("two").create()
        pid, url = server.pid, server.url
        server.kill()
        server.start()
        assert server.pid != pid
        assert server.url == url
        with te.connect(server.url) as db:
            assert db.topic("one").state().count == 1
        assert server.stop() == 0


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"did not start.*exit code [12]"):
        Server(tmp_path / "file").start()


def test_it_needs_no_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None; import topics_engine.testing as t; t.Server"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_an_unknown_setting_of_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`max_topic`; did you mean `max_topics`"):
        Server(tmp_path / "data", max_topic=1)  # type: ignore[call-arg]
