"""The commands on topics. Each gets a database, the arguments and the output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO

from ..client import Database, Gap, Record
from ..client.config import fields
from ..client.read import all_of
from .exits import Exit
from .output import Output, Progress
from .transfer import send

if TYPE_CHECKING:
    from ..client.backend import NewRow

Command = Callable[[Database, argparse.Namespace, Output], int]

LIST_COLUMNS = ["topic", "type", "head_seq", "earliest_seq", "count", "bytes", "durability"]


def ls(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.rows(LIST_COLUMNS, map(asdict, db.topics(args.prefix)))
    return Exit.OK


def create(db: Database, args: argparse.Namespace, out: Output) -> int:
    config = dict(args.config or [])
    if args.durability:
        config["durability"] = args.durability
    made = json.loads(db._backend.create(args.topic, json.dumps(fields(config)).encode()))
    out.fields({name: made[name] for name in ("topic", "created", "config")})
    return Exit.OK


def config_item(text: str) -> tuple[str, Any]:
    """Parses `name=value` of a topic's config; the value is JSON, or else a string."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def describe(db: Database, args: argparse.Namespace, out: Output) -> int:
    state = asdict(db.topic(args.topic).state())
    if state["queue"] is None:
        del state["queue"]
    out.fields(state)
    return Exit.OK


def append(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Appends standard input, one record per line, in batches with idempotency keys."""
    out.fields(send(db, args, _records(sys.stdin.buffer, args), "append"))
    return Exit.OK


def _records(stream: BinaryIO, args: argparse.Namespace) -> Iterator[NewRow]:
    """The lines as records; JSON is stored as it was written."""
    for number, line in enumerate(stream, 1):
        line = line.rstrip(b"\r\n")
        if args.raw:
            yield line, True, args.tag, None, None, 0
        elif line.strip():
            try:
                json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"line {number} is not valid JSON: {error}; use --raw for other text"
                ) from None
            yield line, False, args.tag, None, None, 0


def read(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Prints records after a seq, up to the head or a limit."""
    how: dict[str, Any] = {"limit": args.limit, "tag": args.match, "exclude_nodes": args.node}
    if args.after is not None:
        how["after"] = args.after
    # On a terminal the records themselves show the progress.
    progress = None if out.stream.isatty() else Progress("read", args.limit or 0)
    count = 0
    for batch in db.topic(args.topic).read(**how).batches():
        _show(batch, out)
        count += len(batch)
        if progress is not None:
            progress.show(count)
    if progress is not None:
        progress.end()
    return Exit.OK


def tail(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Prints the newest records; with -f, also new ones."""
    how = {"match": args.match, "skip_nodes": None if args.node is None else [args.node]}
    page = db._backend.read(args.topic, tail=args.lines, limit=args.lines, **how)
    at, head = page.next_from_seq, page.head_seq
    _show(all_of(args.topic, page), out)
    if at < head:
        # One page was not enough.
        rest = db.topic(args.topic).read(at, to_seq=head, tag=args.match, exclude_nodes=args.node)
        for batch in rest.batches():
            _show(batch, out)
        at = rest.cursor
    if args.follow:
        with db.watch({args.topic: at}, tag=args.match, exclude_nodes=args.node) as watch:
            for news in watch.batches():
                _show(news, out)
    return Exit.OK


def _show(items: Any, out: Output) -> None:
    for item in items:
        if isinstance(item, Record):
            out.record(item)
        elif isinstance(item, Gap):
            out.tombstone(item)
    out.flush()
