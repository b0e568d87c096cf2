"""`verify`, `repair`, `restore` and `reload`: tools over a data directory."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any, TextIO

from .. import _core
from ..asgi.settings import Settings
from ..client import restore as restored
from ..client.arguments import time_of
from ..errors import NotFound
from ..lockfile import holder_of
from .exits import Exit
from .output import GREEN, RED, YELLOW, ElapsedTime, Output, Progress, Styled, print_error
from .ranges import time_ms

PROBLEM_COLUMNS = ["file", "offset", "detail"]


def verify(data_dir: str, out: Output) -> int:
    """Checks every checksum of a directory, open or closed. Changes nothing."""
    _require_directory(data_dir)
    return report(verified(data_dir), out)


class Checked:
    """Shows the progress of a verification."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._bar: Progress | None = None

    def __call__(self, files: int, done: int, total: int, problems: int) -> None:
        if self._bar is None:
            self._bar = Progress("verify", total, self._stream)
        found = f", {problems:,} problems" if problems else ""
        self._bar.show(done, f"{files:,} files{found}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.end()


def verified(data_dir: str) -> dict[str, Any]:
    checked = Checked()
    try:
        found: dict[str, Any] = json.loads(_core.verify(data_dir, checked))
    finally:
        checked.end()
    return found


def report(found: dict[str, Any], out: Output) -> int:
    """Prints the result of a verification, and returns the exit code."""
    if out.json_lines:
        out.fields(found)
    else:
        verdict = Styled("ok", GREEN) if found["ok"] else Styled("corrupt", RED)
        counts = [f"{found[k]:,} {k}" for k in ("files", "records", "bytes") if k in found]
        out.line(verdict, f": {', '.join(counts)}")
        if found.get("cold_records"):
            out.line(
                f"{found['cold_records']:,} records of cold segments are in the object store and "
                "were not looked at: `topics verify URL --data` does"
            )
        if found["problems"]:
            out.rows(PROBLEM_COLUMNS, found["problems"])
    return Exit.OK if found["ok"] else Exit.CORRUPT


def repair(settings: Settings, out: Output, *, sure: bool) -> int:
    """Prints what a repair would lose; with `sure`, repairs.

    Files that other files have the data of are rebuilt; lists of deleted records that the object
    store has are fetched. The rest becomes gaps: also the records of cold segments whose objects
    are gone. The damaged files are kept in `damaged/`.
    """
    data_dir = settings.data_dir
    _require_directory(data_dir)
    found = verified(data_dir)
    report(found, out)
    if found["ok"] and not found["cold_records"]:
        return Exit.OK
    with ElapsedTime("repair"):
        plan = json.loads(_core.repair(data_dir, settings.engine))
    is_whole = found["ok"] and not any(plan[name] for name in ("losses", "gaps", "files"))
    if plan["unlooked"] or not is_whole:
        show_plan(plan, out)
    if is_whole:
        return Exit.OK
    if not sure:
        out.line(
            "nothing was changed: run again with --yes to repair, and lose what is listed above"
        )
        return Exit.CORRUPT
    with ElapsedTime("repair"):
        done = json.loads(_core.repair(data_dir, settings.engine, apply=True))
    for name in done["kept"]:
        out.line(f"kept: {name}")
    return verify(data_dir, out)


def show_plan(plan: dict[str, Any], out: Output) -> None:
    """Prints what would be lost: ranges of the log, then of topics."""
    if out.json_lines:
        out.fields(plan)
        return
    if plan["unlooked"]:
        out.line(f"the objects of cold segments were not looked at: {plan['unlooked']}")
    if not plan["losses"] and not plan["gaps"]:
        out.line("no record would be lost")
    losses = [{**loss, "lsns": "{}…{}".format(*loss["lsns"])} for loss in plan["losses"]]
    for title, columns, rows in (
        ("damaged or missing", PROBLEM_COLUMNS, plan["files"]),
        ("lost", ["file", "offset", "lsns"], losses),
        ("records lost, at most", ["topic", "from", "to", "reason"], plan["gaps"]),
    ):
        if rows:
            out.line(Styled(title, RED))
            out.rows(columns, rows)


def reload(data_dir: str, out: Output) -> int:
    """Sends SIGHUP to the server of a directory on this machine."""
    _require_directory(data_dir)
    holder = holder_of(data_dir)
    if holder is None or holder.url is None or not holder.pid:
        # SIGHUP would end a process that is no server.
        print_error(f"no server has {data_dir} open: start one with `topics serve`")
        return Exit.FAILED
    os.kill(holder.pid, signal.SIGHUP)
    out.fields({"told": holder.pid, "url": holder.url})
    return Exit.OK


def _require_directory(data_dir: str) -> None:
    if not Path(data_dir).is_dir():
        raise NotFound(f"{data_dir} is not a directory")


def restore(url: str, directory: str, *, copy: bool, at: str | None, out: Output) -> int:
    """Restores a data directory from an object store, and says what lies beyond its state."""
    when = None if at is None else time_ms("--at", at)
    with ElapsedTime("restore"):
        done = restored(url, directory, copy=copy, at=when)
    if out.json_lines:
        out.fields(dataclasses.asdict(done))
        return Exit.OK
    out.line(f"restored to {directory}: the state of {time_of(done.state_ms).isoformat()}")
    out.line(
        f"{done.topics:,} topics, {done.rounds:,} rounds of the log, "
        f"{done.log_bytes + done.segment_bytes:,} bytes"
    )
    if done.remote_bytes:
        out.line(f"{done.remote_bytes:,} bytes of sealed segments stay in the store until read")
    if not copy:
        out.line(f"go on: topics serve --data-dir {directory} with remote_url={url}")
    if done.has_later:
        newest = time_of(done.newest_ms).isoformat()
        out.line(Styled(f"the prefix has later states, up to {newest} at least", YELLOW))
    if done.skips:
        out.line("records may have been acked after this state: each topic has a gap of 2^32 seqs")
    if done.missing_segments:
        out.line(Styled(f"{done.missing_segments} damaged segments are missing: gaps", RED))
    return Exit.OK
