"""The commands on topics. Each gets a database, the arguments and the output."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..client import LATEST, Database, Gap, Record
from ..client.read import all_of
from ..errors import InvalidRequest, NotFound
from .exits import Exit
from .jsonlines import payload_records, raw_records
from .output import Output, Progress, confirmed
from .ranges import Range
from .send import send

Command = Callable[[Database, argparse.Namespace, Output], int]

LIST_COLUMNS = ["topic", "type", "head_seq", "earliest_seq", "count", "bytes", "durability"]


def ls(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.rows(LIST_COLUMNS, map(asdict, db.topics(args.prefix)))
    return Exit.OK


def create(db: Database, args: argparse.Namespace, out: Output) -> int:
    """`create`, `ensure` or `configure`, as of a handle."""
    options = dict(args.config or [])
    if args.durability:
        options["durability"] = args.durability
    state = getattr(db.topic(args.topic), args.command)(**options)
    out.fields({"topic": state.topic, "config": dict(state.config)})
    return Exit.OK


def describe(db: Database, args: argparse.Namespace, out: Output) -> int:
    state = asdict(db.topic(args.topic).state())
    if state["queue"] is None:
        del state["queue"]
    out.fields(state)
    return Exit.OK


def drop(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Deletes topics; asks before it deletes the records of one, on a terminal."""
    for name in args.topics:
        topic = db.topic(name)
        count = topic.state().count
        if count and not args.if_empty and not confirmed(f"drop {name}: {count:,} records?", args):
            out.line(f"{name} stays")
            continue
        out.fields({"topic": name, "deleted": topic.drop(if_empty=args.if_empty)})
    return Exit.OK


def delete(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Deletes records by seq or tag; asks first, on a terminal."""
    if args.before is None and args.tag is None and args.seqs is None:
        raise InvalidRequest(
            "say which records: give --before SEQ, --tag TAG, or both; or --seqs SEQ…"
        )
    which = [
        *([] if args.before is None else [f"before seq {args.before}"]),
        *([] if args.tag is None else [f"with tag {args.tag}"]),
        *([] if args.seqs is None else [f"with seq {' '.join(map(str, args.seqs))}"]),
    ]
    if not confirmed(f"delete the records of {args.topic} {', '.join(which)}?", args):
        out.line("nothing was deleted")
        return Exit.OK
    deleted = db.topic(args.topic).delete(before=args.before, tag=args.tag, seqs=args.seqs)
    out.fields({"topic": args.topic, **asdict(deleted)})
    return Exit.OK


def trim(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Deletes all but the newest records; asks first, on a terminal."""
    if not confirmed(f"delete all records of {args.topic} but the newest {args.count}?", args):
        out.line("nothing was deleted")
        return Exit.OK
    out.fields({"topic": args.topic, **asdict(db.topic(args.topic).trim(args.count))})
    return Exit.OK


def append(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Appends standard input, one record per line, in batches with idempotency keys."""
    records = (raw_records if args.raw else payload_records)(sys.stdin.buffer, args)
    out.fields(send(db, args, records, "append"))
    return Exit.OK


def read(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Prints records after a seq or time, up to another one, the head or a limit."""
    topic = db.topic(args.topic)
    how = Range.of(topic, args).arguments() | {"limit": args.limit}
    # On a terminal the records themselves show the progress.
    progress = None if out.stream.isatty() else Progress("read", args.limit or 0)
    count = 0
    for batch in topic.read(**how).batches():
        _show(batch, out)
        count += len(batch)
        if progress is not None:
            progress.show(count)
    if progress is not None:
        progress.end()
    return Exit.OK


def tail(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Prints the newest records of topics; with -f, also new ones and those of new topics."""
    patterns = [name for name in args.topics if name.endswith("*")]
    names = dict.fromkeys(name for name in args.topics if name not in patterns)
    for pattern in patterns:
        names |= dict.fromkeys(info.topic for info in db.topics(pattern[:-1]))
    if not names and not args.follow:
        raise NotFound(f"no topic matches {' '.join(patterns)}", "topic_not_found")
    named = bool(patterns) or len(names) > 1
    starts: dict[str, Any] = {}
    for name in names:
        # A topic that a pattern has found may be gone by now.
        with contextlib.suppress(NotFound) if name not in args.topics else contextlib.nullcontext():
            starts[name] = _newest(db, name, args, out, named=named)
    if args.follow:
        starts |= dict.fromkeys(patterns, LATEST)
        nodes = args.exclude_nodes
        with db.watch(starts, tag=args.tag, exclude_nodes=nodes) as watch:
            for news in watch.batches():
                _show(news, out, named=named)
    return Exit.OK


def _newest(db: Database, name: str, args: argparse.Namespace, out: Output, *, named: bool) -> int:
    """Prints the newest records of a topic, and returns its head then."""
    how: Any = {"match": args.tag, "skip_nodes": args.exclude_nodes}
    page = db._backend.read(name, tail=args.lines, limit=args.lines, **how)
    at, head = page.next_from_seq, page.head_seq
    _show(all_of(name, page), out, named=named)
    if at < head:
        # One page was not enough.
        nodes = args.exclude_nodes
        rest = db.topic(name).read(at, to_seq=head, tag=args.tag, exclude_nodes=nodes)
        for batch in rest.batches():
            _show(batch, out, named=named)
        at = rest.cursor
    return at


def _show(items: Any, out: Output, *, named: bool = False) -> None:
    for item in items:
        if isinstance(item, Record):
            out.record(item, named=named)
        elif isinstance(item, Gap):
            out.tombstone(item, named=named)
    out.flush()


COMMANDS: dict[str, Command] = {
    "ls": ls,
    "create": create,
    "ensure": create,
    "configure": create,
    "describe": describe,
    "drop": drop,
    "delete": delete,
    "trim": trim,
    "append": append,
    "read": read,
    "tail": tail,
}
