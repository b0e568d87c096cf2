"""The commands on queues, consumers, routers and transaction writers."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from ..client import Database, Gap, Queue, Record
from ..client.arguments import optional_milliseconds
from ..client.consumer import infos_of
from ..errors import Conflict, InvalidRequest, NotFound
from .commands import Command
from .exits import Exit
from .output import Output, print_error, record_text
from .ranges import time_ms

LAG_COLUMNS = ["topic", "consumer", "mode", "cursor", "lag", "lag_seconds"]
QUEUE_COLUMNS = ["queue", "ready", "in_flight", "delayed", "dead", "dead_lettered", "expired"]
JOB_COLUMNS = [
    "$seq",
    "state",
    "deliveries",
    "lane",
    "group",
    "worker",
    "deadline",
    "visible_at",
    "error",
]
ROUTER_COLUMNS = ["router", "source", "dest", "guarantee", "forwarded_total", "lag", "stopped_by"]


def lag(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Prints the consumers of one topic, or of all, with their lag; with --watch, until Ctrl-C."""
    every: float | None = getattr(args, "watch", None)
    while True:
        rows = [_consumer(found) for found in db._backend.consumers(args.topic or "")]
        if every is None:
            out.rows(LAG_COLUMNS, rows)
            return Exit.OK
        out.clear()
        now = {"ts": int(time.time() * 1000)} if out.json_lines else {}
        out.rows(LAG_COLUMNS, [now | row for row in rows])
        out.flush()
        time.sleep(every)


def _consumer(found: dict[str, Any]) -> dict[str, Any]:
    at = infos_of([found])[0]
    fields = (at.topic, at.name, at.mode, at.cursor, at.lag, at.lag_seconds)
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
            why = f"({job.error})  " if job.error else ""
            out.record(job.record, f"{job.state} {job.deliveries}  {why}")
    return Exit.OK


def queue_claim(db: Database, args: argparse.Namespace, out: Output) -> int:
    """Leases jobs, and prints each with the name that `ack`, `nack` and `release` take."""
    queue = _queue(db, args.queue)
    _require_lasting_leases(queue, args)
    for job in queue.claim(args.worker, args.max, lease=args.lease, wait=args.wait):
        name = f"{job.seq}:{job.lease_id}"
        if out.json_lines:
            more = {"job": name, "deliveries": job.deliveries, "deadline": job.deadline}
            out.line(record_text(job.record, more))
        else:
            out.record(job.record, f"{name}  ")
    return Exit.OK


def _require_lasting_leases(queue: Queue, args: argparse.Namespace) -> None:
    """Raises if the leases of a claim would end with this command."""
    if not args.url and not queue.state().config.get("leases_durable", True):
        raise InvalidRequest(
            "leases end with the process that has the directory open: serve it, and give --url, "
            "or set leases_durable=true"
        )


def queue_ack(db: Database, args: argparse.Namespace, out: Output) -> int:
    done = _queue(db, args.queue)._native.ack(*_leases(args))
    return _finished(args, "acked", done, out)


def queue_nack(db: Database, args: argparse.Namespace, out: Output) -> int:
    delay = optional_milliseconds("--delay", args.delay)
    done = _queue(db, args.queue)._native.nack(*_leases(args), delay, args.error or "")
    return _finished(args, "nacked", done, out)


def queue_release(db: Database, args: argparse.Namespace, out: Output) -> int:
    done = _queue(db, args.queue)._native.release(*_leases(args))
    return _finished(args, "released", done, out)


def _leases(args: argparse.Namespace) -> tuple[str, list[int], list[int]]:
    return args.worker, [seq for seq, _ in args.jobs], [lease for _, lease in args.jobs]


def _finished(args: argparse.Namespace, verb: str, done: Any, out: Output) -> int:
    """Prints how many leases held; the command fails if one did not."""
    count = len(done[0])
    out.fields({"queue": args.queue, verb: count, "lost": len(args.jobs) - count})
    if count < len(args.jobs):
        print_error("a lease had expired, or was of another worker: another claim gets that job")
        return Exit.FAILED
    return Exit.OK


def queue_remove(db: Database, args: argparse.Namespace, out: Output) -> int:
    removed = _queue(db, args.queue).remove(args.seqs, force=args.force)
    out.fields({"queue": args.queue, "removed": removed, "skipped": len(args.seqs) - removed})
    return Exit.OK


def queue_promote(db: Database, args: argparse.Namespace, out: Output) -> int:
    promoted = _queue(db, args.queue).promote(args.seqs)
    out.fields({"queue": args.queue, "promoted": promoted, "skipped": len(args.seqs) - promoted})
    return Exit.OK


def queue_pause(db: Database, args: argparse.Namespace, out: Output) -> int:
    return _set_paused(db, args.queue, True, out)


def queue_resume(db: Database, args: argparse.Namespace, out: Output) -> int:
    return _set_paused(db, args.queue, False, out)


def _set_paused(db: Database, name: str, paused: bool, out: Output) -> int:
    queue = _queue(db, name)
    if queue.state().type != "queue":
        raise Conflict(f"topic {name!r} is a log, not a queue", "not_a_queue")
    if paused:
        queue.pause()
    else:
        queue.resume()
    out.fields({"queue": name, "paused": paused})
    return Exit.OK


def queue_redrive(db: Database, args: argparse.Namespace, out: Output) -> int:
    how = {"to": args.to, "tag": args.tag, "limit": args.limit, "dry_run": args.dry_run}
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
        tag=args.tag,
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
    ts = None if args.since is None else time_ms("--since", args.since)
    cursor = consumer.seek(args.seq if args.to is None else args.to, ts=ts)
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
    "queue claim": queue_claim,
    "queue ack": queue_ack,
    "queue nack": queue_nack,
    "queue release": queue_release,
    "queue remove": queue_remove,
    "queue promote": queue_promote,
    "queue redrive": queue_redrive,
    "queue pause": queue_pause,
    "queue resume": queue_resume,
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
