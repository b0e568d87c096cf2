"""`edit`: the config of a topic in an editor, and what was changed as a diff."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..client import Database
from ..errors import InvalidRequest
from .exits import Exit
from .output import GREEN, RED, Output, Styled, confirmed

STDERR = 2


def edit(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Opens the config in `$VISUAL` or `$EDITOR`, shows the diff, and applies it."""
    topic = db.topic(args.topic)
    before = dict(topic.state().config)
    after = _edited(before, args.topic)
    changed = _changes(before, after)
    lines = list(
        difflib.unified_diff(
            _text(before).splitlines(), _text(before | changed).splitlines(), "now", "new", n=0
        )
    )
    if not out.json_lines:
        _show(lines, out)
    if changed and not confirmed(f"apply this to {args.topic}?", args):
        out.line("nothing was changed")
        return Exit.OK
    if changed:
        topic.configure(**changed)
    out.fields({"topic": args.topic, "changed": changed})
    return Exit.OK


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _edited(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the editor leaves. A text that cannot be used is kept, so that no work is lost."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    prefix = f"topics-{name.replace(':', '-')}-"
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix=prefix, delete=False) as file:
        file.write(_text(config))
    path = Path(file.name)
    try:
        # Standard output may be a pipe; the editor needs the terminal.
        code = subprocess.call([*shlex.split(editor), str(path)], stdout=STDERR)
    except OSError as error:
        path.unlink()
        raise InvalidRequest(f"cannot start {editor!r}: {error.strerror}; set EDITOR") from None
    if code != 0:
        path.unlink()
        raise InvalidRequest(f"{editor!r} ended with exit code {code}: nothing was changed")
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError("it must be a JSON object")
    except ValueError as error:
        raise InvalidRequest(f"the config is not valid: {error}; your text is in {path}") from None
    path.unlink()
    return found


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    missing = sorted(before.keys() - after.keys())
    if missing:
        raise InvalidRequest(f"{', '.join(missing)} must stay: set a value, or null")
    return {name: value for name, value in after.items() if before.get(name, ...) != value}


def _show(lines: list[str], out: Output) -> None:
    for line in lines[2:]:
        if not line.startswith("@@"):
            out.line(Styled(line, GREEN if line.startswith("+") else RED))
