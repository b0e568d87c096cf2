"""`topics edit`: the config of a topic in an editor."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest

import topics_engine as te
from support.pty import terminal
from topics_engine.cli import main


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `edit` on the topic `orders` with an editor that runs a program on the text."""
    place = ["--data-dir", str(tmp_path / "data")]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with te.open(tmp_path / "data") as db:
        db.topic("orders").create(cap_records=10)

    def run(program: str, *more: str) -> int:
        script = tmp_path / "editor.py"
        script.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{program}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", str(script))
        return main([*place, "edit", "orders", *more])

    return run


def config(folder: Path) -> Any:
    with te.open(folder / "data") as db:
        return db.topic("orders").state().config


REPLACE = """
path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text().replace('"cap_records": 10', '"cap_records": 77'))
"""


def test_what_was_changed_is_shown_and_applied(
    edit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    with terminal() as screen:
        monkeypatch.setattr(sys, "stdout", screen.stream)
        assert edit(REPLACE) == 0
        shown = screen.text()
    assert '\x1b[31m-  "cap_records": 10' in shown
    assert '\x1b[32m+  "cap_records": 77' in shown
    assert config(tmp_path)["cap_records"] == 77
    assert list(tmp_path.glob("topics-orders-*")) == []


def test_a_pipe_gets_what_was_changed(edit: Any, tmp_path: Path, capsys: Any) -> None:
    before = config(tmp_path)
    assert edit("") == 0
    assert capsys.readouterr().out == '{"topic": "orders", "changed": {}}\n'
    assert edit(REPLACE) == 0
    assert capsys.readouterr().out == '{"topic": "orders", "changed": {"cap_records": 77}}\n'
    assert config(tmp_path) == {**before, "cap_records": 77}


def test_a_text_that_is_no_config_is_kept(edit: Any, tmp_path: Path, capsys: Any) -> None:
    assert edit("pathlib.Path(sys.argv[1]).write_text('{\\\"cap')") == 2
    (kept,) = tmp_path.glob("topics-orders-*")
    assert kept.read_text() == '{"cap'
    assert str(kept) in capsys.readouterr().err
    assert config(tmp_path)["cap_records"] == 10


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("pathlib.Path(sys.argv[1]).write_text('{}')", "must stay"),
        ("pathlib.Path(sys.argv[1]).write_text('[]')", "JSON object"),
        (REPLACE.replace("77", '"many"'), "cap_records"),
    ],
)
def test_what_cannot_be_applied_changes_nothing(
    edit: Any, tmp_path: Path, capsys: Any, program: str, says: str
) -> None:
    before = config(tmp_path)
    assert edit(program) == 2
    assert says in capsys.readouterr().err
    assert config(tmp_path) == before


def test_there_is_no_editor(
    edit: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "no-such-editor")
    assert main(["--data-dir", str(tmp_path / "data"), "edit", "orders"]) == 2
    assert "set EDITOR" in capsys.readouterr().err
    assert main(["--data-dir", str(tmp_path / "data"), "edit", "none"]) == 3


def test_on_a_terminal_a_no_leaves_it_as_it_was(
    edit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, records in (("n\n", 10), ("", 10), ("yes\n", 77)):
        with terminal() as screen:
            monkeypatch.setattr(sys, "stdin", Keyboard(answer))
            monkeypatch.setattr(sys, "stderr", screen.stream)
            assert edit(REPLACE.replace("stdout", "")) == 0
            assert "apply this to orders? [y/N]" in screen.text()
        assert config(tmp_path)["cap_records"] == records
