"""Contexts: named servers and directories, so that commands need no `--url`.

They are kept in `$XDG_CONFIG_HOME/topics/contexts.json`, which only its owner may read. API keys
stay in files of their own; a context has the name of the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest, NotFound
from .exits import Exit
from .output import Output

VARIABLE = "TOPICS_CONTEXT"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """A server, or a directory."""

    url: str | None = None
    data_dir: str | None = None
    api_key_file: str | None = None

    def api_key(self) -> str | None:
        """The API key in the file of the context."""
        if self.api_key_file is None:
            return None
        try:
            key = Path(self.api_key_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the API key of the context: {error}") from None
        if not key or len(key.split()) != 1:
            raise InvalidRequest(f"{self.api_key_file} must contain one API key and nothing else")
        return key


@dataclass(slots=True)
class Contexts:
    """The contexts of a user, and which of them is used."""

    path: Path | None
    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Contexts:
        """Reads the file; without one there are no contexts. A home that does not exist, or that
        the process may not enter, has none either.
        """
        path = contexts_path()
        if path is None or not _is_there(path):
            return cls(path)
        try:
            saved = json.loads(path.read_text())
            named = {name: Context(**fields) for name, fields in saved["contexts"].items()}
            return cls(path, saved["current"], named)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidRequest(f"{path} cannot be read: {error}; remove or mend it") from None

    def save(self) -> None:
        """Replaces the file."""
        if self.path is None:
            raise InvalidRequest(
                "there is no home directory to keep contexts in: set XDG_CONFIG_HOME to a directory"
            )
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        named = {name: asdict(context) for name, context in sorted(self.by_name.items())}
        text = json.dumps({"current": self.current, "contexts": named}, indent=2) + "\n"
        # A temporary file is made with mode 0600.
        fd, part = tempfile.mkstemp(dir=self.path.parent, prefix=".contexts-")
        try:
            with open(fd, "w") as file:
                file.write(text)
            os.replace(part, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

    def find(self, name: str) -> Context:
        """The context of a name; raises `NotFound`."""
        if name not in self.by_name:
            message = f"there is no context {name!r}: `topics context ls` lists them"
            raise NotFound(message, "context_not_found")
        return self.by_name[name]


def contexts_path() -> Path | None:
    """The file of the contexts; `None` for a user without a home directory."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    # What cannot be expanded stays as it is.
    return Path(base, "topics", "contexts.json") if os.path.isabs(base) else None


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def chosen(args: argparse.Namespace) -> tuple[str, Context] | None:
    """The context of a command: `--context`, or `TOPICS_CONTEXT`, or the one in use, unless the
    server or directory is named otherwise.
    """
    if args.context:
        return args.context, Contexts.load().find(args.context)
    if args.url or args.data_dir:
        return None
    if os.environ.get("TOPICS_URL") or os.environ.get("TOPICS_DATA_DIR"):
        return None
    contexts = Contexts.load()
    name = os.environ.get(VARIABLE) or contexts.current
    return None if not name else (name, contexts.find(name))


def add(args: argparse.Namespace, out: Output) -> int:
    contexts = Contexts.load()
    context = _checked(args)
    contexts.by_name[args.name] = context
    if contexts.current is None:
        contexts.current = args.name
    contexts.save()
    out.fields(_row(contexts, args.name))
    return Exit.OK


def _checked(args: argparse.Namespace) -> Context:
    """The context that the arguments describe."""
    if not _NAME.fullmatch(args.name):
        raise InvalidRequest(
            f"{args.name!r} is not a context name: use letters, digits, `.`, `_` and `-`"
        )
    if bool(args.url) == bool(args.data_dir):
        raise InvalidRequest("a context needs --url or --data-dir: give one of them")
    if args.data_dir and args.api_key_file:
        raise InvalidRequest("--api-key-file is for a server: give --url")
    url = args.url if not args.url or "//" in args.url else f"http://{args.url}"
    if url:
        # Imported here: the other commands on contexts connect to no server.
        from ..remote.transport import check_url

        check_url(url)
    context = Context(url, _absolute(args.data_dir), _absolute(args.api_key_file))
    context.api_key()
    return context


def _absolute(path: str | None) -> str | None:
    return os.path.abspath(os.path.expanduser(path)) if path else None


def use(args: argparse.Namespace, out: Output) -> int:
    contexts = Contexts.load()
    if args.none:
        contexts.current = None
    elif args.name is None:
        raise InvalidRequest("name a context, or give --none")
    else:
        contexts.find(args.name)
        contexts.current = args.name
    contexts.save()
    out.fields({"current": contexts.current})
    return Exit.OK


def ls(args: argparse.Namespace, out: Output) -> int:
    contexts = Contexts.load()
    columns = ["context", "current", "url", "data_dir", "api_key_file"]
    out.rows(columns, [_row(contexts, name) for name in sorted(contexts.by_name)])
    return Exit.OK


def rm(args: argparse.Namespace, out: Output) -> int:
    contexts = Contexts.load()
    contexts.find(args.name)
    del contexts.by_name[args.name]
    if contexts.current == args.name:
        contexts.current = None
    contexts.save()
    out.fields({"context": args.name, "removed": True})
    return Exit.OK


def _row(contexts: Contexts, name: str) -> dict[str, Any]:
    is_current = {"current": contexts.current == name}
    return {"context": name} | is_current | asdict(contexts.by_name[name])


CONTEXT_COMMANDS = {"add": add, "use": use, "ls": ls, "rm": rm}
