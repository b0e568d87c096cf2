"""The commands on queues, consumers, routers and transaction writers."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from ..client import Database, Gap, Queue, Record
from ..client.backend import every_consumer
from .commands import Command
from .exits import Exit
from .output import Output, record_text

LAG_COLUMNS = ["topic", "consumer", "mode", "cursor", "lag", "lag_ms"]
QUEUE_COLUMNS = ["queue", "ready", "in_flight", "delayed", "dead", "dead_lettered", "expired"]
JOB_COLUMNS = ["$seq", "state", "deliveries", "lane", "group", "worker", "deadline", "visible_at"]
ROUTER_COLUMNS = ["router", "source", "dest", "guarantee", "forwarded_total", "lag", "stopped_by"]


def lag(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Prints the consumers of one topic, or of all, with their lag."""
    out.rows(LAG_COLUMNS, [_consumer(*found) for found in every_consumer(db._backend, args.topic)])
    return Exit.OK


def _consumer(topic: str, name: str, mode: str, cursor: int, lag: int, ms: int) -> dict[str, Any]:
    fields = (topic, name, mode, cursor, lag, ms)
    return dict(zip(LAG_COLUMNS, fields, strict=True))


def queue_stats(db: Database, args: argparse.Namespace, out: Output) -> int:
    names = [args.queue] if args.queue else [info.topic for info in db.queues()]
    states = {name: _queue(db, name).state().queue for name in names}
    out.rows(QUEUE_COLUMNS, [{"queue": name, **(of or {})} for name, of in states.items()])
    return Exit.OK


def _queue(db: Database, name: str) -> Queue:
    """A handle of an existing queue; creates nothing."""
    return Queue(db._backend, name, {})


def queue_peek(db: Database, args: argparse.Namespace, out: Output) -> int:
    for job in _queue(db, args.queue).peek(args.max, state=args.state):
        said = {name: getattr(job, name) for name in JOB_COLUMNS[1:]}
        if out.json_lines:
            out.line(record_text(job.record, {k: v for k, v in said.items() if v is not None}))
        else:
            out.record(job.record, f"{job.state} {job.deliveries}  ")
    return Exit.OK


def queue_redrive(db: Database, args: argparse.Namespace, out: Output) -> int:
    how = {"to": args.to, "tag": args.match, "limit": args.limit, "dry_run": args.dry_run}
    moved = _queue(db, args.queue).redrive(**how)
    out.fields({"queue": args.queue, "moved": moved, "dry_run": args.dry_run})
    return Exit.OK


def router_ls(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.rows(ROUTER_COLUMNS, map(asdict, db.routers(args.prefix)))
    return Exit.OK


def router_show(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.fields(asdict(db.router(args.router).state()))
    return Exit.OK


def router_create(db: Database, args: argparse.Namespace, out: Output) -> int:
    router = db.router(
        args.router,
        args.source,
        args.dest,
        tag=args.match,
        allow_cycle=args.allow_cycle,
        guarantee="exactly_once" if args.exactly_once else "at_least_once",
    )
    out.fields(asdict(router.state()))
    return Exit.OK


def router_drop(db: Database, args: argparse.Namespace, out: Output) -> int:
    dropped = db.router(args.router).drop()
    out.fields({"router": args.router, "deleted": dropped})
    return Exit.OK


def consumer_create(db: Database, args: argparse.Namespace, out: Output) -> int:
    made = db.topic(args.topic).consumer(args.consumer, args.mode, start=args.start)
    out.fields(
        {"topic": made.topic, "consumer": made.name, "mode": made.mode, "cursor": made.cursor}
    )
    return Exit.OK


def consumer_peek(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Prints what the next read of a consumer would return."""
    _require_consumer(db, args)
    for item in db.topic(args.topic).consumer(args.consumer).peek(max_records=args.max):
        if isinstance(item, Record):
            out.record(item)
        elif isinstance(item, Gap):
            out.tombstone(item)
    return Exit.OK


def consumer_seek(db: Database, args: argparse.Namespace, out: Output) -> int:
    _require_consumer(db, args)
    consumer = db.topic(args.topic).consumer(args.consumer)
    cursor = consumer.seek(args.seq if args.to is None else args.to, ts=args.ts)
    out.fields({"topic": args.topic, "consumer": args.consumer, "cursor": cursor})
    return Exit.OK


def consumer_commit(db: Database, args: argparse.Namespace, out: Output) -> int:
    _require_consumer(db, args)
    consumer = db.topic(args.topic).consumer(args.consumer)
    consumer.commit(args.seq)
    out.fields({"topic": args.topic, "consumer": args.consumer, "cursor": consumer.cursor})
    return Exit.OK


def consumer_drop(db: Database, args: argparse.Namespace, out: Output) -> int:
    dropped = db.topic(args.topic).drop_consumer(args.consumer)
    out.fields({"topic": args.topic, "consumer": args.consumer, "deleted": dropped})
    return Exit.OK


def _require_consumer(db: Database, args: argparse.Namespace) -> None:
    """Raises if a consumer does not exist: a handle would create it."""
    from ..errors import NotFound

    if all(found.name != args.consumer for found in db.topic(args.topic).consumers()):
        message = f"topic {args.topic!r} has no consumer {args.consumer!r}"
        raise NotFound(message, "consumer_not_found")


def txn_forget(db: Database, args: argparse.Namespace, out: Output) -> int:
    forgotten = db.forget_writer(args.writer)
    out.fields({"writer": args.writer, "forgotten": forgotten})
    return Exit.OK


RESOURCE_COMMANDS: dict[str, Command] = {
    "lag": lag,
    "queue stats": queue_stats,
    "queue peek": queue_peek,
    "queue redrive": queue_redrive,
    "router ls": router_ls,
    "router show": router_show,
    "router create": router_create,
    "router drop": router_drop,
    "txn forget": txn_forget,
    "consumer ls": lag,
    "consumer create": consumer_create,
    "consumer peek": consumer_peek,
    "consumer seek": consumer_seek,
    "consumer commit": consumer_commit,
    "consumer drop": consumer_drop,
}
