"""Completion: the scripts in their shells, which offer verbs, options, values and names."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import topics_engine as te
from support.server import Server
from support.waiting import DEADLINE
from topics_engine.cli.arguments import parser
from topics_engine.cli.completion import SHELLS, script
from topics_engine.cli.main import COMMANDS, LOCAL_COMMANDS

Complete = Callable[..., set[str]]
"""What a shell offers for the last of some words."""


def said_by(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * DEADLINE)
    assert done.stderr == ""
    return done.stdout


def bash(*words: str) -> set[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    shell = f"COMP_WORDS=(topics {quoted}); COMP_CWORD={len(words)}; _topics; "
    program = script(parser(), "bash") + shell + 'printf "%s\\n" "${COMPREPLY[@]}"'
    return set(said_by("bash", "-c", "set -u\n" + program).split())


def fish(*words: str) -> set[str]:
    program = script(parser(), "fish") + f"complete -C 'topics {' '.join(words)}'"
    said = said_by("fish", "--no-config", "-c", program)
    return {line.partition("\t")[0] for line in said.splitlines()}


# Without its mark zsh prints none behind a line that has no end.
ZSH = """
PS1= PROMPT_EOL_MARK=
unsetopt zle_bracketed_paste
autoload -U compinit && compinit -u -D
source ./completion.zsh
bindkey '^I' list-choices
after() { print -r -- "LI""STED"; zle -I }
zle -N after
bindkey '^X' after
print "REA""DY"
"""


def zsh(*words: str) -> set[str]:
    """Types the words and a tab into a zsh on a terminal; a key behind it prints where they end."""
    Path("completion.zsh").write_text(script(parser(), "zsh"))
    Path("setup.zsh").write_text(ZSH)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "COLUMNS": "500"})
    try:
        os.write(terminal, b"source ./setup.zsh\n")
        read_until(terminal, "READY")
        os.write(terminal, f"topics {' '.join(words)}\t\x18".encode())
        shown = read_until(terminal, "LISTED")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)
    # The line is shown again behind the list.
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in shown.splitlines()]
    listed = [line for line in lines if line.strip() and "topics " not in line]
    return {word for line in listed for word in line.split()} - {"LISTED"}


def read_until(terminal: int, end: str) -> str:
    shown, latest = b"", time.monotonic() + 2 * DEADLINE
    while end.encode() not in shown:
        left = max(0.0, latest - time.monotonic())
        assert select.select([terminal], [], [], left)[0], shown
        shown += os.read(terminal, 65536)
    return shown.decode()


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.fixture(params=["bash", "fish", "zsh"])
def complete(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Complete:
    """A shell, in an empty directory, in which `topics` is this program."""
    shell = str(request.param)
    needs(shell)
    program = tmp_path / "bin" / "topics"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m topics_engine "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return {"bash": bash, "fish": fish, "zsh": zsh}[shell]


def test_a_shell_completes_verbs_options_and_values(complete: Complete) -> None:
    assert complete("qu") == {"queue"}
    assert complete("queue", "p") == {"peek", "pause", "promote"}
    assert "claim" not in complete("queue", "peek", "c"), "verbs come once"
    assert complete("--url", "http://h", "queue", "peek", "--st") == {"--state"}
    assert complete("queue", "peek", "--state", "") == {"ready", "leased", "delayed", "dead"}
    assert complete("export", "--format", "") == {"jsonl", "csv", "arrow", "parquet"}
    assert complete("completion", "") >= set(SHELLS)
    # `create` is a verb of its own, too, with other options.
    assert complete("router", "create", "--du") == set()
    assert complete("create", "--du") == {"--durability"}
    assert complete("delete", "t", "--se") == {"--seqs"}


def test_a_shell_completes_names(complete: Complete, hot_server: Server, topic: str) -> None:
    """Those of the place that the command line names; a place that does not answer has none."""
    with te.open("topics-data") as db:
        db.topic("orders").append(1)
        db.queue("jobs").append(1)
        db.router("copies", "orders", "audit")
    assert complete("describe", "or") == {"orders"}
    assert complete("tail", "-f", "") >= {"orders", "jobs", "audit"}
    assert complete("queue", "peek", "") >= {"jobs"}
    assert "orders" not in complete("queue", "peek", "")
    assert complete("router", "show", "") >= {"copies"}
    with te.connect(hot_server.url) as far:
        far.topic(topic).append(1)
    assert complete("--url", hot_server.url, "read", topic[:6]) >= {topic}
    assert complete("--data-dir", "none", "read", "or") == set()
    assert complete("read", "--l") == {"--limit"}


def test_bash_completes_every_verb_and_option() -> None:
    needs("bash")
    verbs = {verb.split()[0] for verb in [*COMMANDS, *LOCAL_COMMANDS, "context", "version"]}
    options = {"--url", "--data-dir", "--context", "--json", "--wide", "--version", "-h", "--help"}
    assert bash("") == verbs | options
    for verb in COMMANDS:
        assert bash(*verb.split(), "--js") == {"--json"}, verb
