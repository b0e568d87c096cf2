"""Writes `python/topics_engine/options.py`: the options of topics, engines and scans as types.

Options of topics and scans come from the table of routes, settings from those of the engine and of
the server. With `--check`, fails if the file is not current.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from topics_engine import _core
from topics_engine.asgi.route import Field
from topics_engine.asgi.routes import CONFIG, ROUTES
from topics_engine.asgi.settings import SERVER
from topics_engine.client.config import option_name
from topics_engine.client.ranges import NAMES
from topics_engine.settings import Setting, engine_settings, kind_of_number

TARGET = Path(__file__).parent.parent / "python" / "topics_engine" / "options.py"

HEAD = '''"""The options of topics, queues, engines and scans, as types.

Generated from the tables of the engine and of the HTTP routes: change those, and run
`python .ci/typed_options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypedDict

if TYPE_CHECKING:
    from .client.arguments import Duration, Since, Size, Start
    from .client.schema import Schema
    from .client.transaction import Named
'''

TYPES = {
    "flag": "bool",
    "count": "int",
    "size": "Size",
    "duration": "Duration",
    "integer?": "int | None",
    "name?": "str | Named | None",
    "text": "str",
    "names": "bool | str | list[str]",
    "string": "str",
    "integer": "int",
    "boolean": "bool",
    "match": "str | list[str]",
    "string or integer": "str | int",
    "integer or boolean": "int | bool",
    "array of strings": "list[str]",
    "object": "Mapping[str, object]",
    "string or array of strings": "str | list[str]",
}
"""Python's types of kinds: those of options and settings, and those of the routes."""

SETTING_TYPES = {"duration": "int", "window": 'int | Literal["never"]'}
"""Python's types of kinds of settings. Milliseconds are integers, as the names say."""


RENAMED = {
    "after": ('int | Start | Literal["earliest"]', "a cursor: records after this seq; or EARLIEST"),
    "exclude_nodes": ("str | Sequence[str]", "records of these nodes are skipped"),
    "nodes": ("str | Sequence[str]", "only records of these nodes"),
    "tag": ("str", 'only records with this tag; "eu:*" selects tags by prefix'),
    "since": ("Since", "only records committed at or after this time"),
    "until": ("Since", "only records committed before this time"),
    "strong": ("bool", "only what has been synced"),
    "data_type": (
        'Literal["string", "binary"]',
        "the type of `data`; as the first record is unless given",
    ),
    "compression": (
        'Literal["lz4", "zstd"]',
        "the codec of what a server sends, none unless given; without a network it has no effect",
    ),
    "schema": (
        "Schema",
        'typed columns, by name: `{"user": "int64"}`; without `columns` they replace `data`',
    ),
    "columns": ("Sequence[str]", "only these, in the schema's order"),
    "max_bytes": ("Size", "payload bytes of a part, 256 MiB unless given"),
}
"""Types and texts of the options of scans that differ from those of the routes."""


def typed_dict(name: str, base: str, summary: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """A class of options: name, type and text of each."""
    lines = [f"class {name}({base}, total=False):", f'    """{summary}"""', ""]
    for option, kind, text in rows:
        lines.append(f"    {option}: {kind}")
        if text:
            lines += docstring(f"{text[0].upper()}{text[1:]}.")
    return "\n".join(lines)


def docstring(text: str) -> list[str]:
    """The lines of a docstring in a class."""
    if len(text) <= 90:
        return [f'    """{text}"""']
    wrapped = textwrap.wrap(text, 93, initial_indent='    """', subsequent_indent="    ")
    return [*wrapped, '    """']


def kind_of(option: Field) -> str:
    """What an option of a topic is, in Python."""
    if option.words:
        return "words"
    if option.or_null:
        return "integer?" if option.kind == "integer" else "name?"
    if option.kind == "boolean":
        return "flag"
    return kind_of_number(option.name)


def config_rows() -> list[tuple[str, str, str]]:
    """The options of a topic."""
    rows = []
    for field in CONFIG:
        text = "" if field.name in ("type", "durability") else field.summary
        text = text.replace("queue: ", "of a queue: ").replace("null", "None")
        rows.append((option_name(field.name), shown(kind_of(field), field.words), text))
    return rows


def shown(kind: str, words: tuple[str, ...]) -> str:
    """The type of a kind."""
    return f"Literal[{', '.join(map(quoted, words))}]" if words else TYPES[kind]


def kinds() -> str:
    """The kinds of the options of a topic, for the checks of values."""
    lines = ["KINDS: Final[Mapping[str, tuple[str, ...]]] = {"]
    for field in sorted(CONFIG, key=lambda field: field.name):
        parts = ", ".join(map(quoted, [kind_of(field), *field.words]))
        lines.append(
            f"    {quoted(option_name(field.name))}: ({parts}{'' if field.words else ','}),"
        )
    return "\n".join(
        [*lines, "}", '"""The kind of each option of a topic, and the words of `words`."""']
    )


def synonyms() -> str:
    """What other systems call the options of a topic, for hints at what was meant."""
    lines = ["SYNONYMS: Final[Mapping[str, str]] = {"]
    known = {other: option_name(field) for other, field in _core.config_synonyms()}
    lines += [f"    {quoted(other)}: {quoted(option)}," for other, option in sorted(known.items())]
    return "\n".join(
        [*lines, "}", '"""What other systems call an option of a topic, and the option."""']
    )


def body_rows(path: str) -> list[tuple[str, str, str]]:
    """The fields of the body of a route."""
    (route,) = (route for route in ROUTES if route.path == path and route.method == "POST")
    return [row(field) for field in route.body]


def row(field: Field) -> tuple[str, str, str]:
    name = NAMES.get(field.name, field.name)
    kind, text = RENAMED.get(name, (TYPES[field.kind], field.summary))
    return name, kind, text


def setting_rows(known: Iterable[Setting]) -> list[tuple[str, str, str]]:
    """Settings with their types."""
    return [
        (s.name, SETTING_TYPES.get(s.kind) or shown(s.kind, s.words), s.summary)
        for s in sorted(known, key=lambda setting: setting.name)
    ]


def server_names() -> str:
    """The names of the settings of a server."""
    lines = [f"        {quoted(name)}," for name in sorted(SERVER)]
    return "\n".join(
        [
            "SERVER: Final = frozenset(",
            "    {",
            *lines,
            "    }",
            ")",
            '"""The names of the settings of a server."""',
        ]
    )


def quoted(word: str) -> str:
    return f'"{word}"'


def generated() -> str:
    """The whole file."""
    options = config_rows()
    of_topic = [row for row in options if row[0] == "type"]
    parts = [
        HEAD,
        typed_dict(
            "QueueConfig",
            "TypedDict",
            "The options of a queue: of `db.queue`.",
            [row for row in options if row[0] != "type"],
        ),
        typed_dict(
            "TopicConfig", "QueueConfig", "The options of a topic: of `db.topic`.", of_topic
        ),
        typed_dict(
            "Settings",
            "TypedDict",
            "The settings of an engine: of `te.open`. Each is also a variable `TOPICS_…`.",
            setting_rows(s for s in engine_settings().values() if s.name != "data_dir"),
        ),
        typed_dict(
            "ServerSettings",
            "Settings",
            "The settings of a server: of `topics_engine.testing.Server`.",
            setting_rows(s for s in SERVER.values() if s.name != "port"),
        ),
        typed_dict(
            "ScanOptions",
            "TypedDict",
            "The range and the columns of `db.scan`.",
            body_rows("/v0/topics/:t/scan"),
        ),
        typed_dict(
            "SplitOptions",
            "TypedDict",
            "The range and the sizes of `db.split`.",
            body_rows("/v0/topics/:t/split"),
        ),
        kinds(),
        synonyms(),
        server_names(),
    ]
    return "\n\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def main() -> int:
    text = generated()
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        print(f"{TARGET} is not current: run `python .ci/typed_options.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
