"""`doctor --remote` and the commands `remote`: the object store of a data directory."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

from .. import _core
from ..asgi.settings import Resolved
from ..client import Database
from ..client.database import verify_prefix
from ..client.embedded import EmbeddedBackend
from ..errors import InvalidRequest, NotFound
from .exits import Exit
from .output import GREEN, RED, YELLOW, ElapsedTime, Output, Progress, Styled, confirmed

LARGE_OBJECT = 33 << 20
"""Bytes of the largest object of a probe: one of a full pack is as large."""

COLOURS = {"present": GREEN, "missing": RED, "unknown": YELLOW}


def url_of(given: str | None, resolved: Resolved) -> str:
    """The URL of a remote: the argument, or else the setting."""
    url = given or str(resolved.values["remote_url"])
    if not url:
        raise InvalidRequest(
            "no remote is named: give its URL, s3://bucket/prefix or file:///directory, or set "
            "TOPICS_REMOTE_URL"
        )
    return url


def probe(url: str, out: Output) -> int:
    """Prints what the server of a remote has and lacks. Leaves nothing there."""
    with ElapsedTime("doctor"):
        found = json.loads(_core.probe_remote(url, LARGE_OBJECT))
    advice = advice_on_remote(found)
    code = Exit.OK if found["suitable"] else Exit.FAILED
    if out.json_lines:
        out.fields({"remote": url} | found | {"advice": advice})
        return code
    for row in found["features"]:
        row["result"] = Styled(row["result"], COLOURS[row["result"]])
    out.rows(["feature", "result", "detail"], found["features"])
    out.line(Styled(advice, GREEN if found["suitable"] else RED))
    return code


def advice_on_remote(found: dict[str, Any]) -> str:
    """What the findings mean."""
    results = {row["result"] for row in found["features"]}
    if found["suitable"]:
        return "fit for a remote"
    if "missing" not in results:
        return "requests failed: check the URL, the credentials and the network, and run it again"
    missing = [row["feature"] for row in found["features"] if row["result"] == "missing"]
    if not found["conditional_writes"]:
        return (
            f"it lacks {', '.join(missing)}: two writers could overwrite each other. Use another "
            "server, or set remote_single_writer=true if no other process ever writes there"
        )
    return f"it lacks {', '.join(missing)}: use another server"


def status(args: argparse.Namespace, resolved: Resolved, out: Output) -> int:
    """Prints what a prefix holds, by its newest base."""
    url = url_of(args.remote, resolved)
    found = json.loads(_core.remote_status(url))
    if found is None:
        raise NotFound(f"{url} holds nothing yet: no directory has been archived to it")
    if not out.json_lines:
        # A folder does not say when HEAD was written: 0.
        for name in ("head_ms", "base_ms"):
            found[name] = datetime.fromtimestamp(at / 1000, UTC) if (at := found[name]) else None
    out.fields({"remote": url} | found)
    return Exit.OK


def verify(url: str, out: Output, *, data: bool) -> int:
    """Checks that what the newest base names is there and, with `data`, whole."""
    bar: Progress | None = None

    def checked(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or Progress("verify", total)
        bar.show(done)

    try:
        found = verify_prefix(url, data=data, progress=checked)
    finally:
        if bar is not None:
            bar.end()
    if out.json_lines:
        out.fields(found)
    else:
        verdict = Styled("ok", GREEN) if found["ok"] else Styled("corrupt", RED)
        read = f"{found['read']:,} of them read, {found['bytes']:,} bytes"
        out.line(verdict, f": {found['objects']:,} objects, {read}")
        if found["problems"]:
            out.rows(["object", "detail"], found["problems"])
    return Exit.OK if found["ok"] else Exit.CORRUPT


def forget(args: argparse.Namespace, resolved: Resolved, out: Output) -> int:
    """Forgets the prefix that a data directory has written to, so that it can write to another."""
    settings = resolved.settings
    question = f"forget the prefix of {settings.data_dir}? Its objects stay as they are"
    if not confirmed(question, args):
        out.line("nothing was changed")
        return Exit.OK
    options = {name: value for name, value in settings.engine.items() if name != "remote_url"}
    engine = _core.Engine.open(settings.data_dir, options)
    with Database(EmbeddedBackend(engine)):
        engine.forget_remote()
    out.fields({"data_dir": settings.data_dir, "remote": None})
    return Exit.OK


REMOTE_COMMANDS = {"status": status, "forget": forget}
