"""The output of commands: tables on a terminal, JSON lines for programs."""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from ..client import Gap, Record
from ..terminal import escaped

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"

CELL_WIDTH = 60
"""Characters of a cell of a table that is not wide."""


class Styled(NamedTuple):
    """Text in a style, on a terminal with colours."""

    text: str
    style: str


class Output:
    """Chooses the format once: colours and tables on a terminal only.

    On a terminal, every text is escaped where it is written, in `line`: styles are the only control
    sequences that come out. Tables escape before that, too, for the widths of their columns.
    """

    def __init__(
        self, *, json_lines: bool, stream: TextIO | None = None, wide: bool = False
    ) -> None:
        self.stream = stream or sys.stdout
        self.wide = wide
        self.is_terminal = self.stream.isatty()
        self.json_lines = json_lines or not self.is_terminal
        self.colour = not self.json_lines and "NO_COLOR" not in os.environ

    def line(self, *parts: str | Styled) -> None:
        """Writes a line, escaped on a terminal."""
        self.stream.write("".join(map(self._shown, parts)) + "\n")

    def _shown(self, part: str | Styled) -> str:
        text, style = (part, None) if isinstance(part, str) else part
        if not self.is_terminal:
            return text
        # A tab of a JSON line is whitespace between tokens, where an escape cannot be.
        text = escaped(text.replace("\t", " ") if self.json_lines else text)
        return text if style is None or not self.colour else f"\x1b[{style}m{text}\x1b[0m"

    def flush(self) -> None:
        self.stream.flush()

    def clear(self) -> None:
        """Clears the terminal."""
        if not self.json_lines:
            self.stream.write("\x1b[H\x1b[2J")

    def rows(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Prints a table of `columns`, or each row as a JSON line.

        A wide table has all columns, and whole cells.
        """
        if self.json_lines:
            for row in rows:
                self.line(json_line(row))
            return
        rows = list(rows)
        if self.wide:
            columns = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
        table = [[self._cell(row.get(c)) for c in columns] for row in rows]
        widths = [max([len(c), *(len(r[i]) for r in table)]) for i, c in enumerate(columns)]
        numeric = [all(r[i].lstrip("-").isdigit() for r in table) for i in range(len(columns))]

        def aligned(cells: Sequence[str]) -> list[str]:
            padded = [
                c.rjust(w) if n else c.ljust(w)
                for c, w, n in zip(cells, widths, numeric, strict=True)
            ]
            return [*(f"{text}  " for text in padded[:-1]), padded[-1].rstrip()]

        self.line(Styled("".join(aligned(columns)), BOLD))
        for row, cells in zip(rows, table, strict=True):
            styles = (getattr(row.get(c), "style", None) for c in columns)
            shown = zip(aligned(cells), styles, strict=True)
            self.line(*(text if style is None else Styled(text, style) for text, style in shown))

    def _cell(self, value: Any) -> str:
        text = escaped(cell(value))
        return text if self.wide or len(text) <= CELL_WIDTH else text[: CELL_WIDTH - 1] + "…"

    def fields(self, answer: Mapping[str, Any]) -> None:
        """Prints the fields of one object, or one JSON line."""
        if self.json_lines:
            self.line(json_line(answer))
            return
        width = max((len(k) for k in answer), default=0)
        for name, value in answer.items():
            if isinstance(value, Mapping):
                self.line(Styled(name, BOLD))
                for inner, held in value.items():
                    self.line(f"  {inner.ljust(width)}  {cell(held)}")
            else:
                self.line(Styled(name.ljust(width + 2), BOLD), f"  {cell(value)}")

    def record(self, record: Record, note: str = "", *, named: bool = False) -> None:
        """Prints a record, cut to the terminal's width unless that is wide, or as a JSON line; with
        the name of its topic if it is `named`.
        """
        if self.json_lines:
            self.line(record_text(record, {"topic": record.topic} if named else None))
            return
        head = f"{record.topic}  " if named else ""
        head += f"{record.seq:>10}  {when(record.time)}  {note}"
        if record.tag:
            head += f"{record.tag}  "
        if self.wide:
            head += "".join(
                f"{name}={value}  "
                for name, value in {"origin": record.origin, **(record.meta or {})}.items()
                if value is not None
            )
        # Both as they are shown, so that their widths are known.
        head, text = escaped(head), escaped(data_text(record).replace("\t", " "))
        if record.binary:
            head += f"<{len(record.stored)} bytes, base64>  "
            text = text.strip('"')
        width = max(20, shutil.get_terminal_size().columns - len(head))
        shown = text if self.wide or len(text) <= width else text[: width - 1] + "…"
        self.line(Styled(head, DIM), shown)

    def tombstone(self, lost: Gap, *, named: bool = False) -> None:
        """Prints a gap."""
        if self.json_lines:
            told = {"gap_from": lost.first, "gap_to": lost.last, "reason": lost.reason}
            line = {"tombstone": told | {"missed_estimate": lost.missed_estimate}}
            self.line(json.dumps(({"topic": lost.topic} if named else {}) | line))
        else:
            text = f"{lost.topic}  " if named else ""
            text += f"  lost {lost.first}…{lost.last} ({lost.reason})"
            self.line(Styled(text, YELLOW))


def json_line(value: Mapping[str, Any]) -> str:
    """An object as a line of JSON; times in it are ISO 8601."""
    return json.dumps(value, ensure_ascii=False, default=datetime.isoformat)


def record_text(record: Record, more: Mapping[str, Any] | None = None) -> str:
    """A record as a server sends it, with the payload as it was written."""
    named = {"$seq": record.seq, "$ts": record.ts, "$node": record.origin, "$tag": record.tag}
    fields: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if record.meta is not None:
        fields["meta"] = dict(record.meta)
    head = json_line(fields | dict(more or {}))[:-1]
    name = "data_b64" if record.binary else "data"
    return f'{head}, "{name}": {data_text(record)}}}'


def data_text(record: Record) -> str:
    """The payload: JSON as it was written, or base64 in quotes."""
    if record.binary:
        return f'"{base64.b64encode(record.stored).decode()}"'
    # Line ends in stored JSON are only whitespace between tokens.
    return record.stored.decode().replace("\n", " ").replace("\r", " ")


def cell(value: Any) -> str:
    """A value in a table."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Styled():
            return value.text
        case datetime():
            return when(value)
        case str() | int() | float():
            return str(value)
        case _:
            return json.dumps(value, ensure_ascii=False)


def when(time: datetime) -> str:
    """A time, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def confirmed(question: str, args: argparse.Namespace) -> bool:
    """Asks on a terminal, unless `--yes` was given. Without a terminal the answer is yes: a script
    cannot be asked.
    """
    if args.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{escaped(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_error(message: str) -> None:
    """Prints an error on stderr; what others wrote into it is escaped."""
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    prefix = f"\x1b[{RED}mtopics:\x1b[0m" if colour else "topics:"
    print(f"{prefix} {escaped(message)}", file=sys.stderr)


class Progress:
    """A progress bar on stderr, after one second; silent if stderr is not a terminal.

    Without a total it shows the count and the rate.
    """

    def __init__(self, what: str, total: int = 0, stream: TextIO | None = None) -> None:
        self._what = what
        self._total = total
        self._stream = stream or sys.stderr
        self._shown = False
        self._started = self._last = time.monotonic()

    def show(self, done: int, note: str = "") -> None:
        seconds = time.monotonic() - self._started
        self.line(f"{self._bar(done)}{done:>9,} {done / max(seconds, 1e-9):>9,.0f}/s {note}")

    def line(self, told: str) -> None:
        """Shows a text, at most ten times per second."""
        now = time.monotonic()
        if not self._stream.isatty() or now - self._started < 1 or now - self._last < 0.1:
            return
        self._last = now
        text = f"{self._what} {told}"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r" + text[:width].ljust(width))
        self._stream.flush()
        self._shown = True

    def _bar(self, done: int) -> str:
        if not self._total:
            return ""
        share = min(1.0, done / self._total)
        return f"{'█' * int(share * 20):<20} {share:4.0%} "

    def end(self) -> None:
        if self._shown:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + " " * width + "\r")
            self._stream.flush()


class ElapsedTime:
    """Shows elapsed seconds on stderr, in a block without progress."""

    def __init__(self, what: str, stream: TextIO | None = None, every: float = 0.5) -> None:
        self._progress = Progress(what, 0, stream)
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, args=(time.monotonic(),), daemon=True)

    def _tell(self, began: float) -> None:
        while not self._over.wait(self._every):
            self._progress.line(f"{time.monotonic() - began:,.0f} s")

    def __enter__(self) -> ElapsedTime:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._progress.end()
