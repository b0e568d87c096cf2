"""Appends the records of a file in batches, and says where to go on if that fails."""

from __future__ import annotations

import argparse
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..client import Database
from ..errors import (
    Conflict,
    Forbidden,
    Full,
    InvalidRequest,
    NotFound,
    Throttled,
    TopicsError,
    Unauthorized,
)
from .output import Progress

if TYPE_CHECKING:
    from ..client.backend import NewRow

    Numbered: TypeAlias = tuple[int, NewRow]
    """A record with the number of its line, or of its row in a file of columns, from 1."""

BATCH_BYTES = 4 << 20
"""Most bytes of a batch with more than one record."""

NOT_STORED = (Conflict, Forbidden, Full, InvalidRequest, NotFound, Throttled, Unauthorized)
"""Errors of an append that has stored nothing. After another one, that is not known."""

_INDEX = re.compile(r"\brecords\[([0-9]+)\]\.?|^record ([0-9]+): ")


@dataclass(slots=True)
class Sent:
    """What a run has stored."""

    up_to: int
    """The last line that is stored, or was skipped."""
    count: int = 0
    deduped: int = 0
    """Records that an earlier run with the same keys had stored."""
    first_seq: int | None = None
    last_seq: int | None = None
    pending: int | None = None
    """The last line of the batch whose outcome is not known."""


def send(
    db: Database,
    args: argparse.Namespace,
    records: Iterator[Numbered],
    what: str,
    unit: str = "line",
) -> dict[str, Any]:
    """Appends records to `args.topic`.

    A batch has a key that is new in each run, so that a retry stores it once. With `args.key`, each
    record is a batch of its own, whose key is made of the number of its line: then a repeated run
    stores nothing twice, either.

    Args:
        records: what comes before an error in them is stored.
        what: the command, for the progress.
        unit: what the numbers count, `line` or `row`.

    Returns:
        The fields for the output.

    Raises:
        TopicsError, ValueError, OSError, KeyboardInterrupt: with a note (`add_note`) that says what
            is stored, and how to store the rest.
    """
    sent = Sent(args.skip_lines)
    run = secrets.token_hex(8)
    progress = Progress(what)
    try:
        for batch in batches(records, 1 if args.key else args.batch):
            number = batch[0][0]
            key = f"{args.key}:{number}" if args.key else f"{run}-{number}"
            _store(db, args, batch, key, sent, unit)
            progress.show(sent.count)
    except BaseException as error:
        error.add_note(_note(sent, args, unit))
        raise
    finally:
        progress.end()
    fields: dict[str, Any] = {"topic": args.topic}
    if sent.last_seq is not None:
        fields |= {"first_seq": sent.first_seq, "last_seq": sent.last_seq}
    return fields | {"count": sent.count} | ({"deduped": sent.deduped} if args.key else {})


def _store(
    db: Database,
    args: argparse.Namespace,
    batch: Sequence[Numbered],
    key: str,
    sent: Sent,
    unit: str,
) -> None:
    sent.pending = batch[-1][0]
    rows = [row for _, row in batch]
    try:
        _, first, last, _, count, _, deduped, _ = db._backend.append(
            args.topic, rows, node=args.origin, key=key, sync=args.sync
        )
    except TopicsError as error:
        if isinstance(error, NOT_STORED) or error.detail.get("outcome") == "not_sent":
            sent.pending = None
        raise _with_line(error, batch, unit) from None
    sent.pending, sent.up_to = None, batch[-1][0]
    sent.first_seq = first if sent.first_seq is None else sent.first_seq
    sent.last_seq = last
    if args.key and deduped:
        sent.deduped += count
    else:
        sent.count += count


def _with_line(error: TopicsError, batch: Sequence[Numbered], unit: str) -> TopicsError:
    """The error of a batch, with the line that it is about."""
    message = str(error)
    if named := _INDEX.search(message):
        at = int(named[1] or named[2])
        message = message.replace(named[0], "", 1)
    elif len(batch) == 1:
        at = 0
    else:
        return error
    return type(error)(f"{unit} {batch[at][0]}: {message}", error.code, error.detail)


def _note(sent: Sent, args: argparse.Namespace, unit: str) -> str:
    """What is stored after a failure, and how to store the rest."""
    stored = "nothing was stored"
    if sent.count + sent.deduped:
        stored = f"{sent.count + sent.deduped:,} records are stored, up to {unit} {sent.up_to}"
    rest = f"--skip-lines {sent.up_to}"
    if sent.pending is not None:
        some = f"{unit} {sent.pending}"
        if sent.pending > sent.up_to + 1:
            some = f"{unit}s {sent.up_to + 1} to {sent.pending}"
        stored += f"; whether {some} is, too, is not known"
        rest += f", or {sent.pending} if `topics tail {args.topic} -n 1` shows that {unit}"
    if args.key:
        return f"{stored}: run it again with the same --key, which stores nothing twice"
    if not sent.up_to and sent.pending is None:
        return stored
    return f"{stored}: go on with {rest}"


def batches(records: Iterator[Numbered], most: int) -> Iterator[list[Numbered]]:
    """Groups records into batches of at most `most` records and `BATCH_BYTES` bytes. An error in
    `records` comes after the batch of those before it.
    """
    batch: list[Numbered] = []
    size = 0
    failure: Exception | None = None
    while failure is None:
        try:
            record = next(records, None)
        except Exception as error:
            failure = error
            break
        if record is None:
            break
        payload = record[1][0]
        if batch and (len(batch) >= most or size + len(payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(payload)
    if batch:
        yield batch
    if failure is not None:
        raise failure
