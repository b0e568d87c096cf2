"""Writes the tables of the documentation that come from the code, into the pages.

Between `<!-- generated: cli -->` and `<!-- end of generated -->` a page has what the code says. On
the page of errors, the columns between the code and its meaning are generated. With `--check`,
fails if a page is not current.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import topics_engine as te
from topics_engine import errors, settings
from topics_engine.asgi.metrics import FAMILIES
from topics_engine.asgi.openapi import status_of
from topics_engine.asgi.route import Field, Route
from topics_engine.asgi.routes import CONFIG, ROUTES
from topics_engine.asgi.settings import SERVER
from topics_engine.cli.main import parser
from topics_engine.client.config import DURATIONS, option_name
from topics_engine.settings import Setting

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GENERATED = re.compile(
    r"(?<=<!-- generated: )(\w+) -->\n.*?(?=<!-- end of generated -->)", re.DOTALL
)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(map(table_row, [head, ["---"] * len(head), *rows])) + "\n"


def table_row(cells: list[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cell or ' ' for cell in cells)} |"


def code(text: object) -> str:
    """Text as code in a cell."""
    return f"`{text}`" if str(text) else ""


def cell(text: str) -> str:
    """Text in a cell."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("\n", " ")


# The command line.


def cli() -> str:
    """Every command with its arguments."""
    top = parser()
    parts = ["Before or after any command:\n", table(["option", "meaning"], arguments_of(top))]
    for name, command in commands_of(top, "topics"):
        said = command.description or ""
        parts.append(f"\n### {name}\n\n{said[:1].upper()}{said[1:].rstrip('.')}.\n")
        words = " ".join(command.format_usage().split()[1:]).replace("[-h] ", "")
        usage = "\n".join(textwrap.wrap(words.removesuffix(" [-h]"), 90, subsequent_indent="    "))
        parts.append(f"```text\n{usage}\n```\n")
        rows = [row for row in arguments_of(command) if row[1] or "` `" in row[0]]
        if rows:
            parts.append(table(["argument", "meaning"], rows))
    return "\n".join(parts)


def commands_of(
    of: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands with an action, in the order of the help."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                inner = list(commands_of(command, f"{name} {word}"))
                yield from inner or [(f"{name} {word}", command)]


def arguments_of(of: argparse.ArgumentParser) -> list[list[str]]:
    """The rows of a command."""
    rows = []
    for action in of._actions:
        skipped = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        if skipped or action.help == argparse.SUPPRESS:
            continue
        names = " ".join(code(s) for s in action.option_strings) or code(action.dest)
        if action.option_strings and action.nargs != 0 and not action.choices:
            names += f" {code(action.metavar or action.dest.upper())}"
        if action.choices:
            names += f" {' '.join(code(choice) for choice in action.choices)}"
        rows.append([names, cell(action.help or "")])
    return rows


# Topics and settings.


@contextlib.contextmanager
def opened() -> Iterator[te.Database]:
    """An engine in a temporary directory, with a remote in another one."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as remote,
        te.open(folder, remote_url=Path(remote).as_uri()) as db,
    ):
        yield db


def shown(value: object) -> str:
    """A value in the notation of JSON and TOML."""
    words = {None: "null", True: "true", False: "false", "": ""}
    if value is None or isinstance(value, bool):
        return words[value]
    return str(value)


def options() -> str:
    """Every topic option, with the defaults of a new log and a new queue."""
    with opened() as db:
        log = db.topic("log").create().config
        queue = db.queue("queue").state().config
    names = {f.name: option_name(f.name) for f in CONFIG}
    if set(names.values()) != set(log):
        raise ValueError(f"options of a topic: {sorted(log)} and {sorted(names.values())}")
    rows = []
    for field in CONFIG:
        name = names[field.name]
        unit = " s" if name in DURATIONS else ""
        default = code(shown(log[name])) + unit
        if queue[name] != log[name] and name != "type":
            default += f"; of a queue {code(shown(queue[name]))}{unit}"
        kind = "duration" if name in DURATIONS else field.kind
        rows.append([code(name), code(field.name), kind, default, cell(field.summary)])
    return table(["option", "over HTTP", "kind", "default", "meaning"], rows)


MORE = {
    "api_keys": "../http.md#keys",
    "backup_dir": "../guides/backup-and-restore.md",
    "cors_origins": "../http.md#keys",
    "log_format": "../operations.md#logs",
    "max_open_files": "../operations.md#file-descriptors",
    "max_unsent_bytes": "../http.md#limits",
    "remote_url": "../guides/object-storage.md",
    "trace_context": "../guides/tracing.md#over-http",
    "trusted_proxies": "../operations.md#logs",
}
"""Where the pages say more about a setting."""


def setting_rows(known: Iterable[Setting]) -> str:
    """A table of settings."""
    rows = []
    for setting in known:
        more = f" ([more]({MORE[setting.name]}))" if setting.name in MORE else ""
        default = code(shown(setting.default)) or "none"
        rows.append([code(setting.name), code(setting.variable), default, setting.summary + more])
    return table(["setting", "variable", "default", "meaning"], rows)


def server_settings() -> str:
    """The settings of a server."""
    return setting_rows([*SERVER.values(), settings.DATA_DIR])


def engine_settings() -> str:
    """The settings of an engine."""
    return setting_rows(s for s in settings.engine_settings().values() if s.name != "data_dir")


def metrics() -> str:
    """Every metric family, as the engine writes it."""
    with opened() as db:
        queue = db.queue("q")
        queue.append(1)
        topic = db.topic("t")
        topic.create()
        topic.consumer("c")
        text = bytes(db._backend.metrics(json=False)).decode()
    help_of = dict(re.findall(r"^# HELP (\w+) (.*)\.$", text, re.MULTILINE))
    parts = []
    for kind in ("counter", "gauge", "histogram"):
        rows = []
        for name in re.findall(rf"^# TYPE (\w+) {kind}$", text, re.MULTILINE):
            sample = re.search(rf"^{name}\{{([^}}]*)\}}", text, re.MULTILINE)
            labels = re.findall(r'(\w+)="', sample[1]) if sample else []
            rows.append([code(name), " ".join(map(code, labels)), cell(help_of[name])])
        parts.append(f"## {kind.capitalize()}s\n\n{table(['family', 'labels', 'meaning'], rows)}")
    return "\n".join(parts)


def server_metrics() -> str:
    """The families that the server adds."""
    rows = [
        [code(f.name), f.kind, " ".join(map(code, f.labels)), cell(f.meaning)] for f in FAMILIES
    ]
    return table(["family", "kind", "labels", "meaning"], rows)


# Errors.


def kinds() -> dict[str, type[errors.TopicsError]]:
    """Every code that a caller can see, with its exception."""
    found = {}
    for source in (ROOT / "python/topics_engine").rglob("*.py"):
        found |= raised_in(ast.parse(source.read_text()))
    engine = (ROOT / "crates/topics-engine/src/types/error.rs").read_text()
    wire = (ROOT / "crates/topics-wire/src/error.rs").read_text()
    known = re.findall(r'=> "(\w+)"', body_of(engine, "pub fn code("))
    known += re.findall(r'"(\w+)"', body_of(wire, "pub fn status("))
    known += [code for route in ROUTES for code in route.all_codes]
    found |= {code: type(errors.make(code, "")) for code in known}
    for name in errors.__all__:
        if isinstance(kind := getattr(errors, name), type):
            found[kind.default_code] = kind
    return found | errors._CLASSES | {"unreachable": errors.Unavailable}


def body_of(source: str, head: str) -> str:
    """The body of a function of Rust."""
    start = source.index(head)
    indent = start - source.rindex("\n", 0, start) - 1
    return source[start : source.index(f"\n{' ' * indent}}}\n", start)]


def raised_in(module: ast.Module) -> dict[str, type[errors.TopicsError]]:
    """The codes that a module gives to exceptions, as their second argument."""
    found = {}
    for call in ast.walk(module):
        match call:
            case ast.Call(func=ast.Name(id="HttpError"), args=[_, ast.Constant(str(code)), *_]):
                found[code] = type(errors.make(code, ""))
            case ast.Call(func=ast.Name(id=name), args=[_, ast.Constant(str(code)), *_]) if (
                name in errors.__all__
            ):
                found[code] = getattr(errors, name)
    return found


def with_columns(page: str) -> str:
    """The page of errors, whose tables get the status, the exception and whether to retry."""
    lines, described, known = [], set(), kinds()
    for line in page.splitlines():
        if line.startswith("| `"):
            first, *_, meaning, action = re.split(r" *(?<!\\)\| *", line.strip("| "))
            name = first.strip("`")
            described.add(name)
            if kind := known.get(name):
                status = "" if name in LOCAL else str(status_of(name))
                again = "yes" if kind.retryable else ""
                line = table_row([first, status, code(kind.__name__), again, meaning, action])
        elif line.startswith("| code |"):
            line = table_row(["code", "HTTP", "Python", "retryable", "meaning", "what to do"])
        elif re.match(r"\| ?---", line):
            line = table_row(["---"] * 6)
        lines.append(line)
    if wrong := described ^ known.keys():
        raise ValueError(f"errors.md and the code differ in {', '.join(sorted(wrong))}")
    return "\n".join(lines) + "\n"


LOCAL = {
    "conflict",
    "context_not_found",
    "data_loss",
    "invalid_directory",
    "locked",
    "unreachable",
    "version",
}
"""Codes of calls in this process; no HTTP answer has them."""


# HTTP.


def routes() -> str:
    """Every route with its parameters and fields."""
    return "\n".join(map(described, ROUTES))


def described(route: Route) -> str:
    """One route."""
    parts = [f"## {route.method} {route.path.replace('*', '')}\n"]
    parts.append(f"{cell(route.summary).capitalize()}. Access: {route.access}.\n")
    if route.query:
        parts.append(field_table("query", route.query))
    if route.body:
        parts.append(field_table("body", route.body))
    if route.answer != "object":
        parts.append("Answer: " + " ".join(map(code, route.answer.split())) + "\n")
    if route.codes:
        own = sorted(set(route.codes))
        parts.append("Errors of its own: " + " ".join(map(code, own)) + "\n")
    return "\n".join(parts)


def field_table(where: str, fields: tuple[Field, ...], within: str = "") -> str:
    """A table of fields; fields of nested objects follow below."""
    rows = list(field_rows(fields, within))
    return table([where, "kind", "meaning"], rows)


def field_rows(fields: tuple[Field, ...], within: str) -> Iterator[list[str]]:
    for field in fields:
        name = f"{within}{field.name}"
        needed = " (required)" if field.required else ""
        yield [code(name), f"{field.kind}{needed}", cell(field.summary)]
        yield from field_rows(field.of, f"{name}.")


TABLES: dict[str, Callable[[], str]] = {
    "cli": cli,
    "topic_options": options,
    "server_settings": server_settings,
    "engine_settings": engine_settings,
    "metrics": metrics,
    "server_metrics": server_metrics,
    "routes": routes,
}


def current(page: Path) -> str:
    """The text of a page, with its generated parts as the code has them now."""

    def part(found: re.Match[str]) -> str:
        made = re.sub(r"\n{3,}", "\n\n", TABLES[found[1]]().strip())
        return f"{found[1]} -->\n\n{made}\n\n"

    text = GENERATED.sub(part, page.read_text())
    return with_columns(text) if page == DOCS / "reference/errors.md" else text


def main() -> None:
    check = "--check" in sys.argv[1:]
    for page in sorted((DOCS / "reference").glob("*.md")):
        text = current(page)
        if not check:
            page.write_text(text)
        elif text != page.read_text():
            sys.exit(f"{page} is not current: run python .ci/docs_tables.py")


if __name__ == "__main__":
    main()
