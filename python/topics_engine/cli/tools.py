"""`verify` and `repair`: tools over a closed data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import _core
from ..asgi.settings import Settings
from .exits import Exit
from .output import GREEN, RED, Output
from .transport import Failure

PROBLEM_COLUMNS = ["file", "offset", "detail"]


def verify(data_dir: str, out: Output) -> int:
    """Every checksum of a directory that no engine has open."""
    _must_exist(data_dir)
    return report(json.loads(_core.verify(data_dir)), out)


def report(found: dict[str, Any], out: Output) -> int:
    """Prints what a verification found; the exit code says whether it is whole."""
    if out.json_lines:
        out.fields(found)
    else:
        verdict = out.paint("ok", GREEN) if found["ok"] else out.paint("corrupt", RED)
        counts = [f"{found[k]:,} {k}" for k in ("files", "records", "bytes") if k in found]
        out.line(f"{verdict}: {', '.join(counts)}")
        if found["problems"]:
            out.rows(PROBLEM_COLUMNS, found["problems"])
    return Exit.OK if found["ok"] else Exit.CORRUPT


def repair(settings: Settings, out: Output, *, sure: bool) -> int:
    """Opens with `salvage`: damaged ranges are copied aside and become gaps. First says which."""
    data_dir = settings.data_dir
    _must_exist(data_dir)
    found = json.loads(_core.verify(data_dir))
    report(found, out)
    if found["ok"]:
        return Exit.OK
    if not sure:
        out.line("nothing was changed: run again with --yes to give up what is listed above")
        return Exit.CORRUPT
    engine = _core.Engine.open(data_dir, {**settings.engine, "recovery": "salvage"})
    engine.close()
    return verify(data_dir, out)


def _must_exist(data_dir: str) -> None:
    if not Path(data_dir).is_dir():
        raise Failure(0, "not_found", f"{data_dir} is not a directory")
