"""The command line: arguments in, exit code out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from .. import errors
from ..asgi.access import BindRefused
from ..asgi.settings import Resolved, SettingError, Settings, resolve
from . import commands
from .exits import Exit, exit_for
from .output import Output, complain
from .transport import Client, Failure, HttpTransport


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="topics", description="Durable topic logs.")
    top.add_argument("--url", help="a server (TOPICS_URL)")
    top.add_argument("--data-dir", help="a data directory, opened in this process")
    top.add_argument("--json", action="store_true", help="JSON lines, on a terminal too")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    common.add_argument("--data-dir", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    common.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    verbs = top.add_subparsers(dest="command", required=True, metavar="command")

    def verb(name: str, summary: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=summary, description=summary, parents=[common])

    _server_arguments(verb("serve", "serve a data directory over HTTP"))
    verb("ls", "list topics").add_argument("prefix", nargs="?", default="")
    _topic_arguments(verb)
    _tool_arguments(verb)
    return top


def _server_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--host", help="address to listen on (TOPICS_HOST, 127.0.0.1)")
    serve.add_argument("--port", help="0 picks one and prints it (TOPICS_PORT, 4000)")
    serve.add_argument("--hints", action="store_true", help="print commands to try")
    serve.add_argument("--access-log", action="store_true", help="log every request")


def _topic_arguments(verb) -> None:  # type: ignore[no-untyped-def]
    create = verb("create", "create a topic, or update its config")
    create.add_argument("topic")
    create.add_argument("--durability", choices=["ephemeral", "memory", "disk", "fsync"])
    create.add_argument(
        "config", nargs="*", type=commands.config_item, help="name=value, such as ttl_ms=60000"
    )
    verb("describe", "the state and config of a topic").add_argument("topic")

    append = verb("append", "append standard input, a record a line")
    append.add_argument("topic")
    append.add_argument("--raw", action="store_true", help="lines are bytes, not JSON")
    append.add_argument("--tag", help="tag of every record")
    append.add_argument("--node", help="origin label of every record")
    append.add_argument("--sync", action="store_true", help="wait until it is durable")
    append.add_argument("--batch", type=_positive, default=500, help="records per write (500)")

    for name, summary in (("read", "read records to the head"), ("tail", "the newest records")):
        reader = verb(name, summary)
        reader.add_argument("topic")
        reader.add_argument("--match", help="only records with this tag, or a prefix and *")
        reader.add_argument("--node", help="skip records of this node")
        if name == "read":
            reader.add_argument("--after", type=int, help="begin after this seq")
            reader.add_argument("--limit", type=_positive, help="at most so many records")
        else:
            reader.add_argument("-n", "--lines", type=_positive, default=10, help="how many (10)")
            reader.add_argument("-f", "--follow", action="store_true", help="go on with new ones")


def _tool_arguments(verb) -> None:  # type: ignore[no-untyped-def]
    verb("verify", "check every checksum and index")
    repair = verb("repair", "give up damaged ranges of a closed directory")
    repair.add_argument("--yes", action="store_true", help="do it; without, only say what is lost")
    verb("doctor", "measure the disk, and say what to expect")
    bench = verb("bench", "a quick append and read figure")
    bench.add_argument("--records", type=_positive, default=100_000)
    verb("config", "every setting and where it comes from")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


TOPIC_COMMANDS: dict[str, commands.Command] = {
    "ls": commands.ls,
    "create": commands.create,
    "describe": commands.describe,
    "append": commands.append,
    "read": commands.read,
    "tail": commands.tail,
}
