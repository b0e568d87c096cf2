"""The command line `topics`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _core, errors
from ..asgi.access import BindRefused
from ..asgi.settings import Resolved, Settings, resolve
from ..client import Database
from ..errors import InvalidRequest, NotFound
from ..extras import extra
from ..settings import variable
from . import commands, measure, tools, transfer
from .arguments import positive, resource_arguments
from .completion import SHELLS, script
from .exits import Exit, advice_for, exit_for
from .output import ElapsedTime, Output, print_error
from .resources import RESOURCE_COMMANDS
from .transfer import FORMATS


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
    verb("reload", "make the server of a directory reload keys, certificate and log level")
    verb("ls", "list topics").add_argument("prefix", nargs="?", default="")
    _topic_arguments(verb)
    resource_arguments(verb, common)
    _transfer_arguments(verb)
    _tool_arguments(verb)
    return top


def _server_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--host", help="address to listen on (TOPICS_HOST, 127.0.0.1)")
    serve.add_argument("--port", help="0 picks one and prints it (TOPICS_PORT, 4000)")
    serve.add_argument("--tls-cert", help="certificate file: serve over TLS (TOPICS_TLS_CERT)")
    serve.add_argument("--tls-key", help="file of its key (TOPICS_TLS_KEY)")
    serve.add_argument("--hints", action="store_true", help="print commands to try")
    serve.add_argument("--access-log", action="store_true", help="log every request")


def _topic_arguments(verb) -> None:  # type: ignore[no-untyped-def]
    create = verb("create", "create a topic, or update its config")
    create.add_argument("topic")
    create.add_argument("--durability", choices=["ephemeral", "memory", "disk", "fsync"])
    create.add_argument(
        "--set",
        action="append",
        dest="config",
        metavar="NAME=VALUE",
        type=commands.config_item,
        help="a config field, such as ttl=7d; may be repeated",
    )
    verb("describe", "print the state and config of a topic").add_argument("topic")

    append = verb("append", "append standard input, one record per line")
    append.add_argument("topic")
    append.add_argument("--raw", action="store_true", help="lines are bytes, not JSON")
    append.add_argument("--tag", help="tag of every record")
    append.add_argument("--node", help="origin label of every record")
    append.add_argument("--sync", action="store_true", help="wait until it is durable")
    append.add_argument("--batch", type=positive, default=500, help="records per write (500)")

    for name, summary in (
        ("read", "print records, up to the head"),
        ("tail", "print the newest records"),
    ):
        reader = verb(name, summary)
        reader.add_argument("topic")
        reader.add_argument("--match", help="only records with this tag, or a prefix and *")
        reader.add_argument("--node", help="skip records of this node")
        if name == "read":
            reader.add_argument("--after", type=int, help="begin after this seq")
            reader.add_argument("--limit", type=positive, help="most records to print")
        else:
            reader.add_argument("-n", "--lines", type=positive, default=10, help="how many (10)")
            reader.add_argument(
                "-f", "--follow", action="store_true", help="also print new records"
            )


def _tool_arguments(verb) -> None:  # type: ignore[no-untyped-def]
    verb("verify", "check every checksum and index")
    repair = verb("repair", "repair a closed directory, dropping damaged ranges")
    repair.add_argument(
        "--yes", action="store_true", help="repair; without it, only show what would be lost"
    )
    verb("doctor", "measure the disk, or the round trip to a server, and say what to expect")
    bench = verb("bench", "measure appends and reads")
    bench.add_argument("--records", type=positive, default=100_000)
    verb("config", "print every setting and its source")
    completion = verb(
        "completion", 'print a shell completion script: eval "$(topics completion bash)"'
    )
    completion.add_argument("shell", choices=SHELLS)


def _transfer_arguments(verb) -> None:  # type: ignore[no-untyped-def]
    export = verb("export", "write a topic's records to a file or standard output")
    into = verb("import", "append what `export` wrote")
    for command in (export, into):
        command.add_argument("topic")
        command.add_argument("file", nargs="?", default="-", help="- is standard input or output")
        command.add_argument(
            "--format", choices=FORMATS, help="format (default: by the file name, else jsonl)"
        )
    export.add_argument("--after", type=int, help="begin after this seq")
    export.add_argument("--upto", type=int, help="end with this seq")
    export.add_argument("--match", help="only records with this tag, or a prefix and *")
    export.add_argument("--node", help="skip records of this node")
    into.add_argument("--tag", help="tag of records without one")
    into.add_argument("--node", help="origin label of records without one")
    into.add_argument("--sync", action="store_true", help="wait until it is durable")
    into.add_argument("--batch", type=positive, default=1000, help="records per write (1000)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = parser().parse_args(argv)
    try:
        return run(args)
    except errors.TopicsError as failure:
        print_error(f"{failure} ({failure.code})")
        if (advice := advice_for(failure)) is not None:
            print_error(advice)
        return exit_for(failure)
    except ModuleNotFoundError as missing:
        print_error(str(missing))
        return Exit.FAILED
    except (BindRefused, ValueError) as wrong:
        print_error(str(wrong))
        return Exit.USAGE
    except BrokenPipeError:
        # The reader closed the pipe: prevent another error when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except KeyboardInterrupt:
        return 130
    except OSError as failure:
        print_error(str(failure))
        return Exit.FAILED


def run(args: argparse.Namespace) -> int:
    out = Output(json_lines=args.json)
    if args.url and args.data_dir:
        raise InvalidRequest("--url and --data-dir were both given: use one of them")
    resolved = resolve(_setting_arguments(args))
    url = None if args.data_dir else args.url or os.environ.get("TOPICS_URL")
    if args.command in LOCAL_COMMANDS:
        return LOCAL_COMMANDS[args.command](args, resolved, url, out)
    settings = resolved.settings
    if not url and args.command == "doctor":
        out.fields(measure.doctor(Path(settings.data_dir)))
        return Exit.OK
    if not url and args.command == "verify":
        return tools.verify(settings.data_dir, out)
    verb = " ".join(filter(None, (args.command, getattr(args, "verb", None))))
    with connect(url, settings, create=verb in CREATES) as db:
        return COMMANDS[verb](db, args, out)


def _setting_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that are settings."""
    return {name: getattr(args, name, None) for name in ARGUMENTS}


ARGUMENTS = ("data_dir", "host", "port", "tls_cert", "tls_key")
"""Settings that are arguments of commands."""

CREATES = {"create", "append", "import", "bench"}
"""Commands that may create the data directory; for others a missing one is an error."""

DEADLINE = 10.0
"""Seconds for which a call to an unavailable server is retried."""


def connect(url: str | None, settings: Settings, *, create: bool) -> Database:
    """Connects to the server at `url`, or opens the directory."""
    if url:
        from ..remote import connect as connect_to

        where = url if "//" in url else f"http://{url}"
        return connect_to(where, os.environ.get("TOPICS_API_KEY"), deadline=DEADLINE)
    if not create and not Path(settings.data_dir).is_dir():
        message = f"{settings.data_dir} is not a directory: give --data-dir or --url"
        raise NotFound(message)
    return Database(_core.Engine.open(settings.data_dir, settings.engine))


def serve(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    with extra("server", "serve"):
        from ..server.serve import serve as run_server

    def read_settings() -> Settings:
        return resolve(_setting_arguments(args)).settings

    settings = resolved.settings
    from_environment = resolved.sources["api_keys"].startswith("environment")
    failure = run_server(
        settings,
        read_settings,
        fixed_keys=settings.api_keys if from_environment else "",
        hints=args.hints,
        access_log=args.access_log,
    )
    if failure is None:
        return Exit.OK
    print_error(str(failure))
    return exit_for(failure)


def reload(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    if url:
        raise InvalidRequest(
            "reload works on a server of this machine: use --data-dir instead of --url"
        )
    return tools.reload(resolved.settings.data_dir, out)


def config(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    """Prints the settings of engine, server and command line, with their sources."""
    rows = [
        _setting(name, value, resolved.sources[name], variable(name))
        for name, value in resolved.values.items()
    ]
    for name, given in (("url", args.url), ("api_key", None)):
        environment = variable(name)
        set_there = os.environ.get(environment)
        source = "argument" if given else f"environment {environment}" if set_there else "default"
        rows.append(_setting(name, given or set_there or "", source, environment))
    out.rows(["setting", "value", "source", "variable"], rows)
    return Exit.OK


SECRET = {"api_keys", "api_key"}


def _setting(name: str, value: Any, source: str, variable: str) -> dict[str, Any]:
    shown = "(set)" if name in SECRET and value else value
    return {"setting": name, "value": shown, "source": source, "variable": variable}


def repair(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    if url:
        raise InvalidRequest(
            "repair works on a closed directory: stop the server, then run "
            "`topics repair --data-dir DIRECTORY` on its machine"
        )
    return tools.repair(resolved.settings, out, sure=args.yes)


def completion(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    out.stream.write(script(parser(), args.shell))
    return Exit.OK


def bench(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.fields(measure.bench(db, args.records))
    return Exit.OK


def doctor(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.fields(measure.of_server(db))
    return Exit.OK


def verify(db: Database, args: argparse.Namespace, out: Output) -> int:
    with ElapsedTime("verify"):
        found = json.loads(db._backend.verify())
    return tools.report(found, out)


LOCAL_COMMANDS = {
    "serve": serve,
    "reload": reload,
    "config": config,
    "repair": repair,
    "completion": completion,
}
"""Commands that need neither a server nor an open directory."""

COMMANDS: dict[str, commands.Command] = {
    "ls": commands.ls,
    "create": commands.create,
    "describe": commands.describe,
    "append": commands.append,
    "read": commands.read,
    "tail": commands.tail,
    "export": transfer.export,
    "import": transfer.import_,
    "bench": bench,
    "doctor": doctor,
    "verify": verify,
    **RESOURCE_COMMANDS,
}
