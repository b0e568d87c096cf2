"""The parser of the command line: every command with its arguments."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .. import _core
from ..asgi.routes import field_of, route_of
from ..asgi.settings import SERVER
from ..names import nearest
from ..options import KINDS as OPTIONS
from ..settings import Setting
from .completion import SHELLS
from .exits import Exit
from .transfer import FORMATS

Add = Callable[..., "Parser"]

MAX_PREFIX_BYTES = 200
"""Bytes of `--key`: a key has at most 256 with the number of a line."""

TAG = "only records with this tag, or a prefix and *"
EXCLUDE = "skip records of this origin; may be repeated"
TIME = "a time (2026-01-31T12:00Z, epoch ms) or an age (90s, 5m, 1h, 7d)"


def summary_of(verb: str) -> str:
    """What a command that is one verb does."""
    return route_of(verb).summary


def text_of(verb: str, name: str) -> str:
    """What an argument that is a field of a verb is for."""
    return field_of(verb, name).summary


UNKNOWN_COMMAND = re.compile(
    r"argument (?:command|verb): invalid choice: '(.*)' \(choose from (.*)\)"
)


class Parser(argparse.ArgumentParser):
    """A parser that hints at the command or argument that was meant, and shows how the command
    itself is used: argparse would show the usage of all commands.
    """

    has_commands = False
    sets_options = False
    """Whether `--set` has options of a topic."""

    def add_subparsers(self, **how: Any) -> Any:
        self.has_commands = True
        return super().add_subparsers(**how)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not self.has_commands:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown[0])}")
        return found, unknown

    def _hint(self, unknown: str) -> str:
        option = unknown.partition("=")[0].removeprefix("--").replace("-", "_")
        if self.sets_options and unknown.startswith("--") and option in OPTIONS:
            return f"; it is an option of a topic: --set {option}=VALUE"
        return ""

    def error(self, message: str) -> NoReturn:
        if found := UNKNOWN_COMMAND.fullmatch(message):
            name, known = found[1], found[2].replace("'", "").split(", ")
            hint = nearest(name, known) or f": `{self.prog} -h` lists them"
            self.exit(Exit.USAGE, f"{self.prog}: there is no command {name!r}{hint}\n")
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = Parser(prog="topics", description="Durable topic logs.")
    top.add_argument("--version", action="version", version=f"topics {_core.__version__}")
    common = argparse.ArgumentParser(add_help=False)
    # Before or after the command; after it, an argument that is not given overrides nothing.
    for to, after in ((top, False), (common, True)):
        _common_arguments(to, after=after)

    def commands(of: Parser, level: str) -> Add:
        below = of.add_subparsers(dest=level, required=True, metavar=level)

        def add(name: str, summary: str, *positional: str) -> Parser:
            made: Parser = below.add_parser(
                name, help=summary, description=summary, parents=[common]
            )
            for argument in positional:
                made.add_argument(argument)
            return made

        return add

    verb = commands(top, "command")

    def family(name: str, summary: str) -> Add:
        return commands(verb(name, summary), "verb")

    _server_arguments(verb)
    _topic_arguments(verb)
    _record_arguments(verb)
    _lag_arguments(verb)
    _queue_arguments(family("queue", "claim, finish and manage jobs; bring dead jobs back"))
    _consumer_arguments(family("consumer", "durable consumers"))
    _router_arguments(family("router", "routers"))
    _writer_arguments(family("txn", "transaction writers"))
    _transfer_arguments(verb)
    _tool_arguments(verb)
    _remote_arguments(family("remote", "the object store of a data directory"))
    _context_arguments(family("context", "named servers and directories"))
    return top


def _common_arguments(to: argparse.ArgumentParser, *, after: bool) -> None:
    for name, kind, text in (
        ("--url", str, "a server (TOPICS_URL)"),
        ("--data-dir", str, "a data directory, or the URL of a prefix to read (TOPICS_DATA_DIR)"),
        ("--context", str, "a context, see `topics context` (TOPICS_CONTEXT)"),
        ("--json", bool, "JSON lines, on a terminal too"),
        ("--wide", bool, "on a terminal: all columns, and nothing cut"),
    ):
        how: dict[str, Any] = {"action": "store_true"} if kind is bool else {}
        if after:
            how |= {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        else:
            how |= {"help": text}
        to.add_argument(name, **how)


def _server_arguments(verb: Add) -> None:
    serve = verb("serve", "serve a data directory over HTTP")
    for name in ("host", "port", "tls_cert", "tls_key"):
        _setting_argument(serve, SERVER[name])
    serve.add_argument(
        "--fd", type=int, help="listen on this inherited socket (systemd: 3), not on an address"
    )
    serve.add_argument("--hints", action="store_true", help="print commands to try")
    serve.add_argument("--access-log", action="store_true", help="log every request")
    console = verb("console", "open the web console of a server in a browser")
    console.add_argument("--no-browser", action="store_true", help="only print its address")
    verb("reload", "make the server of a directory reload keys, certificate and log level")


def _setting_argument(command: argparse.ArgumentParser, setting: Setting) -> None:
    default = f", {setting.default}" if setting.default else ""
    command.add_argument(
        f"--{setting.name.replace('_', '-')}",
        help=f"{setting.summary} ({setting.variable}{default})",
    )


def _topic_arguments(verb: Add) -> None:
    verb("ls", "list topics").add_argument("prefix", nargs="?", default="")
    for name, summary in (
        ("create", "create a topic; refuse one that exists"),
        ("ensure", "create a topic, or check that an existing one has these options"),
        ("configure", "change options of a topic"),
    ):
        command = verb(name, summary, "topic")
        command.sets_options = True
        command.add_argument("--durability", choices=OPTIONS["durability"][1:])
        command.add_argument(
            "--set",
            action="append",
            dest="config",
            metavar="NAME=VALUE",
            type=config_item,
            help="an option, such as ttl=7d; may be repeated",
        )
    verb("describe", "print the state and config of a topic", "topic")
    edit = verb("edit", "edit the config of a topic in $EDITOR", "topic")
    edit.add_argument("--yes", action="store_true", help="apply the changes without a question")
    drop = verb("drop", "delete topics with all their records")
    drop.add_argument("topics", nargs="+", metavar="topic")
    drop.add_argument("--if-empty", action="store_true", help="only topics without records")
    drop.add_argument("--yes", action="store_true", help="without a question")
    delete = verb("delete", summary_of("delete"), "topic")
    delete.add_argument("--before", type=int, metavar="SEQ", help="those before this seq")
    delete.add_argument("--tag", help=TAG)
    delete.add_argument(
        "--seqs", nargs="+", type=int, metavar="SEQ", help=text_of("delete", "seqs")
    )
    delete.add_argument("--yes", action="store_true", help="without a question")
    trim = verb("trim", summary_of("trim"), "topic")
    trim.add_argument("count", type=int, help=text_of("trim", "to_count"))
    trim.add_argument("--yes", action="store_true", help="without a question")


def _record_arguments(verb: Add) -> None:
    append = verb("append", "append standard input, one record per line", "topic")
    append.add_argument("--raw", action="store_true", help="lines are bytes, not JSON")
    append.add_argument("--tag", help="tag of every record")
    append.add_argument("--origin", help="origin label of every record")
    append.add_argument("--sync", action="store_true", help="wait until it is durable")
    _send_arguments(append, 500)

    read = verb("read", "print records, up to the head", "topic")
    read.add_argument("--limit", type=positive, help="most records to print")
    _range_arguments(read)
    tail = verb("tail", "print the newest records")
    tail.add_argument("topics", nargs="+", metavar="topic", help="a name, or a prefix and *")
    tail.add_argument("-n", "--lines", type=positive, default=10, help="how many of each (10)")
    tail.add_argument("-f", "--follow", action="store_true", help="also print new records")
    _filter_arguments(tail)


def _send_arguments(command: argparse.ArgumentParser, batch: int) -> None:
    command.add_argument(
        "--skip-lines",
        type=not_negative,
        default=0,
        metavar="N",
        help="go on after this line (row, in a file of columns)",
    )
    how = command.add_mutually_exclusive_group()
    how.add_argument("--batch", type=positive, default=batch, help=f"records per write ({batch})")
    how.add_argument(
        "--key",
        type=key_prefix,
        metavar="PREFIX",
        help="write each line by itself, with the idempotency key PREFIX:NUMBER, so that another "
        "run stores nothing twice",
    )


def _range_arguments(reader: argparse.ArgumentParser) -> None:
    start = reader.add_mutually_exclusive_group()
    start.add_argument("--after", type=int, metavar="SEQ", help="begin after this seq")
    start.add_argument("--since", metavar="TIME", help=f"begin at {TIME}")
    end = reader.add_mutually_exclusive_group()
    end.add_argument("--to-seq", type=int, metavar="SEQ", help="end with this seq")
    end.add_argument("--until", metavar="TIME", help=f"end before {TIME}")
    _filter_arguments(reader)


def _filter_arguments(reader: argparse.ArgumentParser) -> None:
    reader.add_argument("--tag", help=TAG)
    reader.add_argument("--exclude-nodes", action="append", metavar="ORIGIN", help=EXCLUDE)


def _lag_arguments(verb: Add) -> None:
    lag = verb("lag", "how far behind each consumer is")
    lag.add_argument("topic", nargs="?", help="only of this topic")
    lag.add_argument(
        "--watch",
        nargs="?",
        type=positive_seconds,
        const=2.0,
        metavar="SECONDS",
        help="again and again, every two seconds unless given",
    )


def _queue_arguments(add: Add) -> None:
    add("stats", "counts by state").add_argument("queue", nargs="?")
    peek = add("peek", "jobs as they are; leases nothing", "queue")
    peek.add_argument("--state", choices=field_of("jobs", "state").words)
    peek.add_argument("--max", type=positive, default=20, help="of each state (20)")
    claim = add("claim", summary_of("claim"), "queue")
    _worker_argument(claim)
    claim.add_argument("--max", type=positive, default=1, help="most jobs (1)")
    claim.add_argument("--lease", help="how long: 90s, 5m (default: the queue's)")
    claim.add_argument("--wait", default="0s", help="for the first job: 5s (none)")
    ack = add("ack", summary_of("ack"), "queue")
    nack = add("nack", summary_of("nack"), "queue")
    release = add("release", summary_of("release"), "queue")
    for command in (ack, nack, release):
        command.add_argument(
            "jobs", nargs="+", metavar="job", type=leased_job, help="as `claim` prints it"
        )
        _worker_argument(command)
    nack.add_argument("--delay", help="until they can be claimed: 30s (default: the backoff)")
    nack.add_argument("--error", help=text_of("nack", "error"))
    remove = add("remove", summary_of("jobs_remove"), "queue")
    promote = add("promote", summary_of("jobs_promote"), "queue")
    for command in (remove, promote):
        command.add_argument("seqs", nargs="+", metavar="seq", type=int)
    remove.add_argument("--force", action="store_true", help=text_of("jobs_remove", "force"))
    redrive = add("redrive", summary_of("redrive"), "queue")
    redrive.add_argument("--to", help=text_of("redrive", "to"))
    redrive.add_argument("--tag", help="only jobs with this tag, or a prefix and *")
    redrive.add_argument("--limit", type=positive, help=text_of("redrive", "limit"))
    redrive.add_argument("--dry-run", action="store_true", help=text_of("redrive", "dry_run"))
    add("pause", "let nothing be claimed; leased jobs go on", "queue")
    add("resume", "let jobs be claimed again", "queue")


def _worker_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("--worker", default="cli", help="name of the worker (cli)")


def _consumer_arguments(add: Add) -> None:
    add("ls", "consumers with their lag").add_argument("topic", nargs="?")
    create = add("create", "create a consumer", "topic", "consumer")
    create.add_argument("--mode", choices=field_of("consumer_put", "mode").words)
    create.add_argument("--start", choices=["earliest", "latest"], default="earliest")
    peek = add("peek", "what its next read would hand out", "topic", "consumer")
    peek.add_argument("--max", type=positive, default=20, help="records (20)")
    seek = add("seek", summary_of("consumer_seek"), "topic", "consumer")
    where = seek.add_mutually_exclusive_group(required=True)
    where.add_argument("--seq", type=int, help="after this seq")
    where.add_argument("--since", metavar="TIME", help=f"before what was written at {TIME}")
    where.add_argument("--to", choices=["earliest", "latest"])
    commit = add("commit", summary_of("consumer_commit"), "topic", "consumer")
    commit.add_argument("seq", type=int)
    add("drop", summary_of("consumer_drop"), "topic", "consumer")


def _router_arguments(add: Add) -> None:
    add("ls", "routers, and how far they are").add_argument("prefix", nargs="?", default="")
    add("show", summary_of("router"), "router")
    create = add("create", summary_of("router_put"), "router", "source", "dest")
    create.add_argument("--tag", help=TAG)
    create.add_argument("--exactly-once", action="store_true")
    create.add_argument("--allow-cycle", action="store_true")
    add("drop", summary_of("router_drop"), "router")


def _writer_arguments(add: Add) -> None:
    forget = add("forget", "forget a writer's last epoch", "writer")
    forget.description = "Its next commit may have any epoch; its staged transactions are aborted."


def _transfer_arguments(verb: Add) -> None:
    export = verb("export", "write a topic's records to a file or standard output", "topic")
    into = verb("import", "append what `export` wrote", "topic")
    for command in (export, into):
        command.add_argument("file", nargs="?", default="-", help="- is standard input or output")
        command.add_argument(
            "--format", choices=FORMATS, help="format (default: by the file's ending, else jsonl)"
        )
    _range_arguments(export)
    into.add_argument("--tag", help="tag of records without one")
    into.add_argument("--origin", help="origin label of records without one")
    into.add_argument("--sync", action="store_true", help="wait until it is durable")
    _send_arguments(into, 1000)


def _tool_arguments(verb: Add) -> None:
    verify = verb("verify", summary_of("verify"))
    verify.add_argument(
        "remote",
        nargs="?",
        metavar="URL",
        help="instead of a directory, what the newest base of a prefix of an object store names",
    )
    how = verify.add_mutually_exclusive_group()
    how.add_argument(
        "--data", action="store_true", help="with URL: read every byte, not only every footer"
    )
    how.add_argument(
        "--drill",
        action="store_true",
        help="with URL: restore a copy into a temporary directory, verify it, and compare it with "
        "the engine that --url or --data-dir names",
    )
    verify.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="with --drill: write its outcome to FILE, for the textfile collector of Prometheus' "
        "node_exporter",
    )
    restore = verb("restore", "restore a data directory from an object store")
    restore.add_argument("remote", metavar="URL", help="the prefix that it was backed up to")
    restore.add_argument("directory", metavar="DIR", help="a directory that is missing or empty")
    restore.add_argument(
        "--copy",
        action="store_true",
        help="download everything and leave the prefix to its owner; without it, the directory "
        "goes on with the prefix, and the one before it is refused there",
    )
    restore.add_argument(
        "--at",
        metavar="TIME",
        help="with --copy: the state at this time, or this long ago (default: the newest state)",
    )
    repair = verb("repair", "repair a closed directory, dropping damaged ranges")
    repair.add_argument(
        "--yes", action="store_true", help="repair; without it, only show what would be lost"
    )
    backup = verb("backup", "copy a directory, or that of a server, while it is written to")
    backup.add_argument(
        "dir",
        metavar="DIR",
        help="a directory that is missing or empty, or the URL of a new prefix of an object store; "
        "with --url below the server's backup_dir",
    )
    clone = verb("clone", "copy a directory that is not open, or a backup, by hard links")
    clone.add_argument("source", metavar="SOURCE", help="a data directory; it is not changed")
    clone.add_argument("target", metavar="TARGET", help="missing or empty")
    doctor = verb(
        "doctor", "measure the disk, or the round trip to a server, and say what to expect"
    )
    doctor.add_argument(
        "--remote",
        nargs="?",
        const="",
        metavar="URL",
        help="probe the server of an object store instead (TOPICS_REMOTE_URL)",
    )
    bench = verb("bench", "measure appends and reads")
    bench.add_argument("--records", type=positive, default=100_000)
    verb("config", "print every setting and its source")
    completion = verb(
        "completion", 'print a shell completion script: eval "$(topics completion bash)"'
    )
    completion.add_argument("shell", choices=SHELLS)
    verb("version", "print the versions of topics and Python")


def _remote_arguments(add: Add) -> None:
    status = add("status", "what is archived, and who writes to it")
    forget = add("forget", "let a data directory write to another prefix than before")
    forget.add_argument("--yes", action="store_true", help="without a question")
    status.add_argument("remote", nargs="?", metavar="URL", help="its URL (TOPICS_REMOTE_URL)")


def _context_arguments(add: Add) -> None:
    made = add("add", "add or replace a context: give --url or --data-dir", "name")
    made.add_argument("--api-key-file", help="file of the API key for the server")
    use = add("use", "make a context the one that commands use")
    use.add_argument("name", nargs="?")
    use.add_argument("--none", action="store_true", help="use none")
    add("ls", "list contexts")
    add("rm", "remove a context; the server or directory stays", "name")


def config_item(text: str) -> tuple[str, Any]:
    """Parses `name=value` of a topic's config; the value is JSON, or else a string."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def positive(text: str) -> int:
    """Parses a number that is at least 1."""
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """Parses a number that is at least 0."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is out of range: must be at least {least}")
    return number


def key_prefix(text: str) -> str:
    """Parses the beginning of idempotency keys; the number of a line follows."""
    if not 1 <= len(os.fsencode(text)) <= MAX_PREFIX_BYTES:
        raise argparse.ArgumentTypeError(f"must have 1 to {MAX_PREFIX_BYTES} bytes")
    return text


def positive_seconds(text: str) -> float:
    """Parses a number of seconds that is over 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is out of range: must be over 0")
    return number


def leased_job(text: str) -> tuple[int, int]:
    """Parses a leased job, `SEQ:LEASE`, as `claim` prints it."""
    parts = text.replace(":lease_", ":").split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a job as `claim` prints it: SEQ:LEASE")
    seq, lease = map(int, parts)
    return seq, lease
