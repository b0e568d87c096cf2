"""`verify URL --drill`: restores a copy of a prefix, checks it, and compares it with the engine."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .. import _core
from ..client import Database, Restored, TopicInfo
from ..client import restore as restored
from ..client.arguments import time_of
from ..client.embedded import EmbeddedBackend
from ..client.values import Gap
from ..errors import NotFound
from .exits import Exit
from .output import GREEN, RED, ElapsedTime, Output, Styled, print_error
from .tools import verified

SLACK_MS = 10_000
"""A record is in the log this long after it got its time, at most: a state that lacks an older one
is not what it says."""


def drill(
    url: str,
    compared: AbstractContextManager[Database | None],
    out: Output,
    metrics: Path | None = None,
) -> int:
    """Prints what a copy of the prefix holds, and what is wrong with it. The copy is made below the
    directory for temporary files, and removed. The prefix and the engine do not change.

    Args:
        url: the prefix.
        compared: the engine that the copy is compared with; `None` compares it with nothing.
        out: where the report goes.
        metrics: a file that gets the outcome in the text format of Prometheus, also of a drill that
            fails with an error.
    """
    if metrics is not None and (metrics.is_dir() or not metrics.parent.is_dir()):
        # Before the restore, which may take hours.
        raise NotADirectoryError(f"--metrics {metrics}: name a file in a directory that exists")
    folder = Path(tempfile.mkdtemp(prefix="topics-drill-"))
    try:
        with compared as engine:
            report = _report(url, str(folder / "copy"), engine)
    except Exception:
        _write_metrics(metrics, {"ok": False})
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _write_metrics(metrics, report)
    _show(report, out)
    return Exit.OK if report["ok"] else Exit.CORRUPT


METRICS: tuple[tuple[str, str, Callable[[dict[str, Any]], float | None]], ...] = (
    ("ok", "1 if the last drill found nothing wrong", lambda r: int(r["ok"])),
    ("timestamp_seconds", "When the last drill ended", lambda _: round(time.time(), 3)),
    (
        "state_timestamp_seconds",
        "Time of the state that the last drill restored",
        lambda r: None if "state_ms" not in r else r["state_ms"] / 1000,
    ),
    ("restore_seconds", "How long the restore took", lambda r: r.get("restore_s")),
    ("records", "Records of the copy", lambda r: r.get("records")),
)
"""Name behind `topics_drill_`, help, and value in a report; `None`: not known after an error."""


def _write_metrics(file: Path | None, report: dict[str, Any]) -> None:
    """Replaces the file at once: a collector that reads it meanwhile sees the old one."""
    if file is None:
        return
    lines = []
    for name, text, value_of in METRICS:
        value = value_of(report)
        if value is not None:
            name = f"topics_drill_{name}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
    made = file.with_name(f".{file.name}.tmp")
    made.write_text("\n".join(lines) + "\n")
    # The collector is another user.
    made.chmod(0o644)
    made.replace(file)


def _report(url: str, directory: str, engine: Database | None) -> dict[str, Any]:
    """What was found, as the fields of the answer."""
    began = time.monotonic()
    with ElapsedTime("restore"):
        done = restored(url, directory, copy=True)
    seconds = time.monotonic() - began
    found = verified(directory)
    problems = [
        {"topic": None, "detail": f"{problem['file']}: {problem['detail']}"}
        for problem in found["problems"]
    ]
    if done.missing_segments:
        detail = f"{done.missing_segments} damaged segments are missing: their records are gaps"
        problems.append({"topic": None, "detail": detail})
    behind = None
    with Database(EmbeddedBackend(_core.Engine.open(directory, {}, True))) as copy:
        infos = {info.topic: info for info in copy.topics()}
        if engine is not None:
            compared = _Comparison(done, copy, infos)
            for info in engine.topics():
                problems += compared.problems(engine, info)
            behind = compared.behind
    return {
        "remote": url,
        "ok": not problems,
        "state_ms": done.state_ms,
        "restore_s": round(seconds, 3),
        "topics": len(infos),
        "records": sum(info.count for info in infos.values()),
        "bytes": sum(info.bytes for info in infos.values()),
        "behind": behind,
        "problems": problems,
    }


class _Comparison:
    """Compares the topics of an engine with those of a copy. The engine may have gone on: what a
    copy may lack is newer than its state, and what the engine may lack was deleted."""

    def __init__(self, done: Restored, copy: Database, infos: dict[str, TopicInfo]) -> None:
        self.behind = 0
        """Records of the engine behind the last one of the copy."""
        self._state_ms = done.state_ms
        self._copy, self._infos = copy, infos

    def problems(self, engine: Database, info: TopicInfo) -> Iterator[dict[str, Any]]:
        """What the copy lacks of a topic though it should have it."""
        if info.durability == "ephemeral":
            return
        name = info.topic
        known = self._infos.get(name)
        last = 0 if known is None else _last_seq(self._copy, name)
        try:
            later = _first(engine, name, last)
        except NotFound:
            return  # dropped meanwhile
        if later is None:
            if known is not None and known.count < info.count and last >= _last_seq(engine, name):
                missing = info.count - known.count
                yield {"topic": name, "detail": f"the copy lacks {missing:,} of its records"}
            return
        seq, at = later
        self.behind += max(0, info.head_seq - max(last, seq - 1))
        if at.timestamp() * 1000 <= self._state_ms - SLACK_MS:
            detail = f"the copy lacks seq {seq}, which is older than the state of the copy"
            yield {"topic": name, "detail": detail}


def _last_seq(db: Database, topic: str) -> int:
    """The seq of the newest record; 0 without one."""
    newest = [item for item in db.topic(topic).tail(1) if not isinstance(item, Gap)]
    return newest[-1].seq if newest else 0


def _first(db: Database, topic: str, after: int) -> Any:
    """Seq and time of the first record after a seq."""
    with db.topic(topic).read(after=after, limit=1, gaps="skip") as read:
        return next(((record.seq, record.time) for record in read), None)


def _show(report: dict[str, Any], out: Output) -> None:
    if out.json_lines:
        out.fields(report)
        return
    verdict = Styled("ok", GREEN) if report["ok"] else Styled("corrupt", RED)
    state = time_of(report["state_ms"]).isoformat()
    out.line(
        verdict,
        f": {report['topics']:,} topics, {report['records']:,} records, {report['bytes']:,} bytes; "
        f"the state of {state}, restored in {report['restore_s']} s",
    )
    if report["behind"] is None:
        print_error("compared with no engine: name its server with --url, or its directory")
    else:
        out.line(f"the engine has {report['behind']:,} later records")
    if report["problems"]:
        out.rows(["topic", "detail"], report["problems"])
