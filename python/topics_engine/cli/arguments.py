"""The arguments of the commands on queues, consumers, routers and transaction writers."""

from __future__ import annotations

import argparse
from typing import Any


def resource_arguments(verb: Any, common: argparse.ArgumentParser) -> None:
    """Adds `lag`, `queue`, `consumer`, `router` and `txn`; `common` has the arguments of all
    commands.
    """
    lag = verb("lag", "how far behind each consumer is")
    lag.add_argument("topic", nargs="?", help="only of this topic")

    def family(name: str, summary: str) -> Any:
        verbs = verb(name, summary).add_subparsers(dest="verb", required=True, metavar="verb")

        def add(name: str, summary: str, *positional: str) -> argparse.ArgumentParser:
            made: argparse.ArgumentParser = verbs.add_parser(
                name, help=summary, description=summary, parents=[common]
            )
            for argument in positional:
                made.add_argument(argument)
            return made

        return add

    _queue_arguments(family("queue", "look at queues, and bring dead jobs back"))
    _consumer_arguments(family("consumer", "durable consumers"))
    _router_arguments(family("router", "routers"))
    writers = family("txn", "transaction writers")
    forget = writers("forget", "forget a writer's last epoch", "writer")
    forget.description = "Its next commit may have any epoch; its staged transactions are aborted."


def _queue_arguments(add: Any) -> None:
    add("stats", "counts by state").add_argument("queue", nargs="?")
    peek = add("peek", "jobs as they are; leases nothing", "queue")
    peek.add_argument("--state", choices=["ready", "leased", "delayed", "dead"])
    peek.add_argument("--max", type=positive, default=20, help="of each state (20)")
    redrive = add("redrive", "bring dead jobs, or dead letters, back", "queue")
    redrive.add_argument("--to", help="another queue than where each came from")
    redrive.add_argument("--match", help="only jobs with this tag, or a prefix and *")
    redrive.add_argument("--limit", type=positive, help="most jobs to move")
    redrive.add_argument("--dry-run", action="store_true", help="only count")


def _consumer_arguments(add: Any) -> None:
    add("ls", "consumers with their lag").add_argument("topic", nargs="?")
    create = add("create", "create a consumer", "topic", "consumer")
    create.add_argument("--mode", choices=["at_least_once", "at_most_once"])
    create.add_argument("--start", choices=["earliest", "latest"], default="earliest")
    peek = add("peek", "what its next read would hand out", "topic", "consumer")
    peek.add_argument("--max", type=positive, default=20, help="records (20)")
    seek = add("seek", "set its cursor", "topic", "consumer")
    where = seek.add_mutually_exclusive_group(required=True)
    where.add_argument("--seq", type=int, help="behind this seq")
    where.add_argument("--ts", type=int, help="before what was written at this time, ms")
    where.add_argument("--to", choices=["earliest", "latest"])
    commit = add("commit", "everything up to a seq is done", "topic", "consumer")
    commit.add_argument("seq", type=int)
    add("drop", "delete a consumer and its cursor", "topic", "consumer")


def _router_arguments(add: Any) -> None:
    add("ls", "routers, and how far they are").add_argument("prefix", nargs="?", default="")
    add("show", "one router", "router")
    create = add("create", "create or update a router", "router", "source", "dest")
    create.add_argument("--match", help="only records with this tag, or a prefix and *")
    create.add_argument("--exactly-once", action="store_true")
    create.add_argument("--allow-cycle", action="store_true")
    add("drop", "delete a router; what it copied stays", "router")


def positive(text: str) -> int:
    """Parses a number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is out of range: must be at least 1")
    return number
