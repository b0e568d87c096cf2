"""The command line `topics`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import _core, errors
from ..asgi.access import BindRefused
from ..asgi.settings import Resolved, Settings, resolve
from ..client import Backup, Database
from ..client import clone as clone_directory
from ..client.database import is_prefix
from ..client.embedded import EmbeddedBackend
from ..errors import InvalidRequest, Locked, NotFound
from ..extras import extra
from ..lockfile import holder_of
from ..settings import variable
from . import commands, contexts, drill, measure, remote, tools, transfer
from .arguments import parser
from .completion import NAMES, matching_names, script
from .console import console as open_console
from .edit import edit
from .exits import Exit, advice_for, exit_for
from .output import ElapsedTime, Output, print_error
from .resources import RESOURCE_COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if NAMES in argv:
        return complete(argv)
    args = parser().parse_args(argv)
    try:
        return run(args)
    except BrokenPipeError:
        # The reader closed the pipe: prevent another error when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except (errors.TopicsError, ModuleNotFoundError, BindRefused, ValueError, OSError) as failure:
        return report(failure, args)
    except KeyboardInterrupt as interrupt:
        for note in getattr(interrupt, "__notes__", ()):
            print_error(note)
        return 130


def report(failure: Exception, args: argparse.Namespace) -> int:
    """Prints an error, what to do about it, and its notes; returns the exit code."""
    if isinstance(failure, errors.TopicsError):
        print_error(f"{failure} ({failure.code})")
        if (advice := advice_for(failure, args.command)) is not None:
            print_error(advice)
    else:
        print_error(str(failure))
    for note in getattr(failure, "__notes__", ()):
        print_error(note)
    is_usage = isinstance(failure, ValueError) and not isinstance(failure, errors.TopicsError)
    return Exit.USAGE if is_usage else exit_for(failure)


def run(args: argparse.Namespace) -> int:
    out = Output(json_lines=args.json, wide=args.wide)
    if args.command == "context":
        return contexts.CONTEXT_COMMANDS[args.verb](args, out)
    if args.command == "version":
        return version(out)
    named = [f"--{name.replace('_', '-')}" for name in PLACES if getattr(args, name)]
    if len(named) > 1:
        raise InvalidRequest(f"{' and '.join(named)} were both given: use one of them")
    # A server serves a directory, a clone names both; the context in use is for clients.
    alone = args.command in ("serve", "completion", "clone")
    used = None if alone else contexts.chosen(args)
    if used is not None:
        args.context, context = used
        args.url, args.data_dir = context.url, context.data_dir
    resolved = resolve(_setting_arguments(args))
    url = None if args.data_dir else args.url or os.environ.get("TOPICS_URL")
    if args.command in LOCAL_COMMANDS:
        return LOCAL_COMMANDS[args.command](args, resolved, url, out)
    if args.command == "doctor" and args.remote is not None:
        return remote.probe(remote.url_of(args.remote, resolved), out)
    settings = resolved.settings
    if not url and args.command == "doctor":
        out.fields(measure.doctor(Path(settings.data_dir)))
        return Exit.OK
    if args.command == "verify" and args.remote is not None:
        if Path(args.remote).is_dir():
            raise InvalidRequest(
                f"{args.remote!r} is a directory, not the URL of a prefix: `topics --data-dir "
                f"{args.remote} verify` verifies a data directory"
            )
        if args.metrics is not None and not args.drill:
            raise InvalidRequest("--metrics goes with --drill")
        if args.drill:
            key = used[1].api_key() if used is not None else None
            compared = compared_with(url, args, settings, key)
            return drill.drill(args.remote, compared, out, args.metrics)
        return remote.verify(args.remote, out, data=args.data)
    if args.command == "verify" and (args.data or args.drill or args.metrics):
        flag = "--data" if args.data else "--drill" if args.drill else "--metrics"
        raise InvalidRequest(f"{flag} goes with the URL of a prefix: a directory is read whole")
    if not url and args.command == "verify":
        return tools.verify(settings.data_dir, out)
    verb = " ".join(filter(None, (args.command, getattr(args, "verb", None))))
    key = used[1].api_key() if used is not None else None
    try:
        db = connect(url, settings, create=verb in CREATES, key=key)
    except Locked as locked:
        # The server would take the directory of a backup for one of its own.
        if locked.url is None or verb == "backup":
            raise
        url = locked.url
        db = connect(url, settings, create=False)
    args.url = url
    with db:
        return COMMANDS[verb](db, args, out)


PLACES = ("url", "data_dir", "context")
"""Arguments that name where a command works."""


def version(out: Output) -> int:
    """Prints the versions."""
    out.fields(
        {
            "topics": _core.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
    )
    return Exit.OK


def complete(argv: Sequence[str]) -> int:
    """Prints the names that complete a word, for the scripts of `completion`; errors are silent."""
    at = list(argv).index(NAMES)
    kind, word = (*argv[at + 1 :], "", "")[:2]
    try:
        args = parser().parse_args([*argv[:at], "ls"])
        used = contexts.chosen(args)
        context = used[1] if used else contexts.Context(args.url, args.data_dir)
        url = context.url or (None if context.data_dir else os.environ.get("TOPICS_URL"))
        settings = resolve({"data_dir": context.data_dir}).settings
        key = context.api_key()
        if not url and (holder := holder_of(settings.data_dir)) is not None:
            url = holder.url
        with connect(url, settings, create=False, key=key, deadline=COMPLETION_SECONDS) as db:
            for name in matching_names(db, kind, word):
                print(name)
    except (errors.TopicsError, ModuleNotFoundError, ValueError, OSError):
        return Exit.FAILED
    return Exit.OK


def _setting_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that are settings."""
    return {name: getattr(args, name, None) for name in ARGUMENTS}


ARGUMENTS = ("data_dir", "host", "port", "tls_cert", "tls_key")
"""Settings that are arguments of commands."""

CREATES = {"create", "ensure", "append", "import", "bench"}
"""Commands that may create the data directory; for others a missing one is an error."""

DEADLINE = 10.0
"""Seconds for which a call to an unavailable server is retried."""
COMPLETION_SECONDS = 1.0


def connect(
    url: str | None,
    settings: Settings,
    *,
    create: bool,
    key: str | None = None,
    deadline: float | None = None,
) -> Database:
    """Connects to the server at `url`, or opens the directory.

    Raises:
        Locked: another process has the directory open; `.url` is where it serves it, if it does.
        NotFound: the directory does not exist.
    """
    if url:
        from ..remote import connect as connect_to

        where = url if "//" in url else f"http://{url}"
        key = key or os.environ.get("TOPICS_API_KEY")
        return connect_to(where, key, deadline=DEADLINE if deadline is None else deadline)
    if is_prefix(settings.data_dir):
        engine = _core.Engine.open(settings.data_dir, settings.engine, True)
        return Database(EmbeddedBackend(engine))
    if not create and not Path(settings.data_dir).is_dir():
        message = f"{settings.data_dir} is not a directory: give --data-dir or --url"
        raise NotFound(message)
    return Database(EmbeddedBackend(_core.Engine.open(settings.data_dir, settings.engine)))


@contextlib.contextmanager
def compared_with(
    url: str | None, args: argparse.Namespace, settings: Settings, key: str | None
) -> Iterator[Database | None]:
    """What a drill compares with: the server at `url`, or that of `--data-dir`, or that directory,
    read-only; nothing if neither is named.
    """
    if args.data_dir and (holder := holder_of(settings.data_dir)) is not None:
        url = holder.url
    if url:
        with connect(url, settings, create=False, key=key) as db:
            yield db
    elif args.data_dir:
        engine = _core.Engine.open(settings.data_dir, {}, True)
        with Database(EmbeddedBackend(engine)) as db:
            yield db
    else:
        yield None


def serve(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    if args.url:
        raise InvalidRequest(
            "serve works on a directory: give --data-dir, and --host and --port to listen on"
        )
    with extra("server", "serve"):
        from ..server.serve import serve as run_server

        # The first HTTP/2 connection imports it: that is too late to say that it is missing.
        if find_spec("h2") is None:
            raise ModuleNotFoundError(name="h2")

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
        fd=args.fd,
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


def console(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    open_console(url, resolved.settings.data_dir, out, opens=not args.no_browser)
    return Exit.OK


def config(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    """Prints the settings of engine, server and command line, with their sources."""
    rows = [
        _setting(name, value, resolved.sources[name], variable(name))
        for name, value in resolved.values.items()
    ]
    for name, given in (("url", args.url), ("api_key", None)):
        environment = variable(name)
        set_there = os.environ.get(environment)
        if name == "url" and args.context:
            given, source = args.url, f"context {args.context}"
            rows.append(_setting(name, given or "", source, environment))
            continue
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


def remote_command(
    args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output
) -> int:
    if args.url:
        raise InvalidRequest(
            "the commands of remote work on an object store or a closed directory: give the URL of "
            "the store as the argument, and --data-dir for forget"
        )
    return remote.REMOTE_COMMANDS[args.verb](args, resolved, out)


def clone(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    if args.url or args.data_dir:
        raise InvalidRequest("clone has both directories as arguments: topics clone SOURCE TARGET")
    with ElapsedTime("clone"):
        made = clone_directory(args.source, args.target)
    out.fields(_shown(made))
    return Exit.OK


def restore(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    return tools.restore(args.remote, args.directory, copy=args.copy, at=args.at, out=out)


def completion(args: argparse.Namespace, resolved: Resolved, url: str | None, out: Output) -> int:
    out.stream.write(script(parser(), args.shell))
    return Exit.OK


def bench(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.fields(measure.bench(db, args.records))
    return Exit.OK


def doctor(db: Database, args: argparse.Namespace, out: Output) -> int:
    out.fields(measure.of_server(db))
    return Exit.OK


def backup(db: Database, args: argparse.Namespace, out: Output) -> int:
    with ElapsedTime("backup"):
        made = db.backup(args.dir)
    out.fields(_shown(made))
    return Exit.OK


def _shown(made: Backup) -> dict[str, Any]:
    return {name: getattr(made, name) for name in made.__match_args__}


def verify(db: Database, args: argparse.Namespace, out: Output) -> int:
    with ElapsedTime("verify"):
        found = json.loads(db._backend.verify())
    return tools.report(found, out)


LOCAL_COMMANDS = {
    "serve": serve,
    "reload": reload,
    "console": console,
    "config": config,
    "repair": repair,
    "clone": clone,
    "restore": restore,
    "completion": completion,
    "remote": remote_command,
}
"""Commands that need neither a server nor an open directory."""

COMMANDS: dict[str, commands.Command] = {
    **commands.COMMANDS,
    "edit": edit,
    "export": transfer.export,
    "import": transfer.import_,
    "bench": bench,
    "doctor": doctor,
    "backup": backup,
    "verify": verify,
    **RESOURCE_COMMANDS,
}
