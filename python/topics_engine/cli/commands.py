"""The commands on topics: each takes a client, the arguments and where to print."""

from __future__ import annotations

import argparse
import base64
import json
import secrets
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO
from urllib.parse import urlencode

from .exits import Exit
from .output import Output, Progress
from .transport import Client, split_records, topic_path

Command = Callable[[Client, argparse.Namespace, Output], int]

LIST_COLUMNS = ["topic", "head_seq", "earliest_seq", "count", "bytes", "durable"]
BATCH_BYTES = 4 << 20
FOLLOW_MS = 20_000


def ls(client: Client, args: argparse.Namespace, out: Output) -> int:
    out.rows(LIST_COLUMNS, _pages(client, args.prefix))
    return Exit.OK


def _pages(client: Client, prefix: str) -> Iterator[dict[str, Any]]:
    query = {"prefix": prefix, "page_size": "1000", "touch": "false"}
    while True:
        page = client.call("GET", "/v0/topics?" + urlencode(query))
        yield from page["topics"]
        if "next_cursor" not in page:
            return
        query["cursor"] = page["next_cursor"]


def create(client: Client, args: argparse.Namespace, out: Output) -> int:
    config = dict(args.config or [])
    if args.durability:
        config["durability"] = args.durability
    out.fields(client.call("PUT", topic_path(args.topic), config))
    return Exit.OK


def config_item(text: str) -> tuple[str, Any]:
    """`name=value` of a topic's config; the value is JSON, or else a string."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def describe(client: Client, args: argparse.Namespace, out: Output) -> int:
    out.fields(client.call("GET", topic_path(args.topic)))
    return Exit.OK


def append(client: Client, args: argparse.Namespace, out: Output) -> int:
    """Standard input, a record a line, in batches; a batch that is sent twice is stored once."""
    run = secrets.token_hex(8)
    progress = Progress("append", 0)
    first, last, count = None, 0, 0
    for number, batch in enumerate(_batches(_records(sys.stdin.buffer, args), args.batch)):
        fields = {"node": args.node} if args.node else {}
        if args.sync:
            fields["sync"] = True
        head = json.dumps(fields)[1:-1].encode()
        body = b'{%b%b"records":[%b]}' % (head, b"," if head else b"", b",".join(batch))
        answer = client.call("POST", topic_path(args.topic), body, key=f"{run}-{number}")
        first = answer["first_seq"] if first is None else first
        last, count = answer["last_seq"], count + answer["count"]
        progress.show(count)
    progress.end()
    if first is None:
        out.fields({"topic": args.topic, "count": 0})
        return Exit.OK
    out.fields({"topic": args.topic, "first_seq": first, "last_seq": last, "count": count})
    return Exit.OK


def _records(stream: BinaryIO, args: argparse.Namespace) -> Iterator[bytes]:
    """Each line as a record of a write's body; JSON goes in as it was written."""
    tail = b',"tag":' + json.dumps(args.tag).encode() if args.tag else b""
    for number, line in enumerate(stream, 1):
        line = line.rstrip(b"\r\n")
        if args.raw:
            yield b'{"data_b64":"%b"%b}' % (base64.b64encode(line), tail)
        elif line.strip():
            try:
                json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from None
            yield b'{"data":%b%b}' % (line, tail)


def _batches(records: Iterator[bytes], most: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and (len(batch) >= most or size + len(record) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    if batch:
        yield batch


def read(client: Client, args: argparse.Namespace, out: Output) -> int:
    """Records after a seq, to the head or a number of them."""
    start: Any = "earliest" if args.after is None else args.after
    return _follow(client, args, out, {"from_seq": start}, left=args.limit, follow=False)


def tail(client: Client, args: argparse.Namespace, out: Output) -> int:
    """The newest records, and with -f what comes after them."""
    left = None if args.follow else args.lines
    return _follow(client, args, out, {"tail": args.lines}, left=left, follow=args.follow)


def _follow(
    client: Client,
    args: argparse.Namespace,
    out: Output,
    start: dict[str, Any],
    *,
    left: int | None,
    follow: bool,
) -> int:
    target = topic_path(args.topic, "diff")
    body = dict(start, include_tags=True)
    if args.match:
        body["match"] = args.match
    if args.node:
        body["node"] = args.node
    while left is None or left > 0:
        body["limit"] = 1000 if left is None else min(1000, left)
        body["wait_ms"] = FOLLOW_MS if follow and "tail" not in body else 0
        fields, records = split_records(client.text("POST", target, body, repeat=True))
        if fields.get("tombstone"):
            out.tombstone(fields["tombstone"])
        for record, raw in records:
            out.record(record, raw)
        out.flush()
        left = None if left is None else left - len(records)
        if fields["caught_up"] and not follow:
            break
        body.pop("tail", None)
        body["from_seq"] = fields["next_from_seq"]
    return Exit.OK
