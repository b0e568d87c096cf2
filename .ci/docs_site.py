"""An mkdocs hook that generates the parts of the documentation that come from the code.

A page requests one with a comment, `<!-- generated: cli -->`. The hook also checks links that point
out of `docs/`: a link to a file that the site has as a page points to that page, a link to any
other file becomes plain text. A page that does not match the code fails the build.
"""

from __future__ import annotations

import argparse
import contextlib
import posixpath
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import topics_engine as te
from topics_engine import errors, settings
from topics_engine.asgi.metrics import FAMILIES
from topics_engine.asgi.openapi import status_of
from topics_engine.asgi.route import Field, Route
from topics_engine.asgi.routes import CONFIG, ROUTES
from topics_engine.asgi.settings import SERVER
from topics_engine.cli.main import parser
from topics_engine.client.config import DURATIONS, option_name

sys.path.append(str(Path(__file__).parent))
import diagrams

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

PAGES = {
    "crates/topics-storage/FORMAT.md": "internals/format.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "internals/changelog.md",
    "SECURITY.md": "internals/security.md",
}
"""Files elsewhere in the repository, and their paths in the site."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are outside of `docs/`."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Inserts the requested parts, and converts links that point out of `docs/`."""
    uri = page.file.src_uri
    source = next((s for s, u in PAGES.items() if u == uri), f"docs/{uri}")

    def part(found: re.Match[str]) -> str:
        return GENERATED[found[1]]()

    try:
        markdown = re.sub(r"<!-- generated: (\w+) -->", part, markdown)
        markdown = diagrams.FENCE.sub(lambda found: diagram(found[1], uri), markdown)
        if uri == "reference/errors.md":
            markdown = with_columns(markdown)
        return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lambda m: link(m, source, uri), markdown)
    except (KeyError, ValueError) as wrong:
        raise PluginError(f"{uri}: {wrong}") from wrong


def link(found: re.Match[str], source: str, uri: str) -> str:
    """Converts a link to its form in the site."""
    bang, text, target = found.groups()
    path, _, anchor = target.partition("#")
    if bang or not path or ":" in path:
        return found[0]
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if meant.startswith("docs/") and not source.startswith("docs/"):
        at = meant.removeprefix("docs/")
    elif meant in PAGES:
        at = PAGES[meant]
    elif meant.startswith("docs/"):
        return found[0]
    elif (ROOT / meant).exists():
        return text if "`" in text else f"`{meant}`"
    else:
        raise ValueError(f"{target} points to a file that does not exist")
    there = posixpath.relpath(at, posixpath.dirname(uri) or ".")
    return f"[{text}]({there}{'#' * bool(anchor)}{anchor})"


def diagram(source: str, uri: str) -> str:
    """The drawn forms of a diagram, of which the page shows the one for its color scheme."""
    parts = []
    for scheme in diagrams.SCHEMES:
        path = diagrams.DRAWN / diagrams.name_of(source, scheme)
        if not path.is_file():
            raise ValueError("a diagram has changed; run `make diagrams`")
        there = posixpath.relpath(path.relative_to(DOCS).as_posix(), posixpath.dirname(uri) or ".")
        parts.append(f"![Diagram]({there}#only-{scheme})")
    return "\n".join(parts)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines) + "\n"


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


def meanings(columns: int, name: int) -> dict[str, str]:
    """The descriptions of the settings in the tables of the operations page, by name."""
    found = {}
    for line in (DOCS / "operations.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == columns:
            text = cells[-1].strip("| ").replace("](#", "](operations.md#")
            text = re.sub(r"\]\((?!\w+:)", "](../", text)
            found[cells[name].strip("|` ")] = text
    return found


def setting_rows(known: dict[str, Any], said: dict[str, str]) -> str:
    """A table of settings."""
    missing = known.keys() - said.keys()
    if missing:
        raise ValueError(f"operations.md does not describe {', '.join(sorted(missing))}")
    rows = [
        [code(name), code(settings.variable(name)), code(shown(value)) or "none", said[name]]
        for name, value in known.items()
    ]
    return table(["setting", "variable", "default", "meaning"], rows)


def server_settings() -> str:
    """The settings of a server."""
    return setting_rows(dict(SERVER) | {"data_dir": settings.DATA_DIR}, meanings(4, 0))


def engine_settings() -> str:
    """The settings of an engine."""
    known = settings.defaults()
    del known["data_dir"]
    return setting_rows(known, meanings(3, 0))


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


def codes() -> set[str]:
    """Every code that a caller can see."""
    engine = (ROOT / "crates/topics-engine/src/types/error.rs").read_text()
    body = engine.partition("pub fn code(")[2].partition("\n    }\n")[0]
    found = set(re.findall(r'=> "(\w+)"', body)) | errors._CLASSES.keys()
    for route in ROUTES:
        found |= route.all_codes
    return found | BESIDE


def with_columns(markdown: str) -> str:
    """The tables of the errors page, with the status, the exception and whether to retry."""
    lines, said, within = [], set(), False
    for line in markdown.splitlines():
        if line.startswith("| code |"):
            within = True
            line = line.replace("| code |", "| code | HTTP | Python | retryable |")
        elif within and line.startswith("|---"):
            line = "|---|---|---" + line
        elif within and line.startswith("| `"):
            name = line.split("`")[1]
            said.add(name)
            kind = errors.Unavailable("") if name == "unreachable" else errors.make(name, "")
            again = "yes" if kind.retryable else ""
            over = str(status_of(name)) if name not in LOCAL else ""
            made = f"| {over} | {code(type(kind).__name__)} | {again} |"
            line = line.replace(f"| `{name}` |", f"| `{name}` {made}", 1)
        else:
            within = False
        lines.append(line)
    if said != codes():
        raise ValueError(f"the page and the code differ in {sorted(said ^ codes())}")
    return "\n".join(lines)


LOCAL = {"data_loss", "locked", "invalid_directory", "version", "unreachable"}
"""Codes of calls in this process; no HTTP answer has them."""

BESIDE = {"not_implemented", "unreachable"}
"""Codes of the layers below the routes, and of the clients."""


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


GENERATED: dict[str, Callable[[], str]] = {
    "cli": cli,
    "topic_options": options,
    "server_settings": server_settings,
    "engine_settings": engine_settings,
    "metrics": metrics,
    "server_metrics": server_metrics,
    "routes": routes,
}
