"""The arguments of `db.scan` and `db.split`, checked, as the HTTP routes take them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import InvalidRequest
from ..names import nearest
from . import arguments, schema
from .encoding import matcher
from .values import Split

NAMES: Final[Mapping[str, str]] = {
    "from_seq": "after",
    "node": "exclude_nodes",
    "match": "tag",
    "ts_from": "since",
    "ts_to": "until",
    "consistency": "strong",
    "fields": "schema",
}
"""Names here of fields of the routes; the other fields have the same name."""


def _consistency(name: str, value: object) -> str:
    return "strong" if arguments.flag(name, value) else "eventual"


def _nodes(name: str, value: object) -> list[str]:
    return list(arguments.nodes(value, name))


def _records(name: str, value: object) -> int:
    return arguments.count(name, value, 1, arguments.MAX_INT)


def _data_type(name: str, value: object) -> str:
    return arguments.choice(name, value, ("string", "binary"))


def _compression(name: str, value: object) -> str:
    return arguments.choice(name, value, ("lz4", "zstd"))


def _tag(name: str, value: object) -> Any:
    return matcher(arguments.tag_filter(value))


SCAN: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "from_seq": arguments.beginning,
    "to_seq": arguments.seq,
    "columns": arguments.texts,
    "fields": schema.fields,
    "data_type": _data_type,
    "compression": _compression,
    "node": _nodes,
    "nodes": _nodes,
    "match": _tag,
    "ts_from": arguments.since_ms,
    "ts_to": arguments.since_ms,
    "consistency": _consistency,
    "topic_id": arguments.seq,
}
"""The check of each field of a scan."""

SPLIT: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "from_seq": arguments.beginning,
    "to_seq": arguments.seq,
    "max_records": _records,
    "max_bytes": arguments.size,
}
"""The check of each field of a split."""


def scan_request(given: Mapping[str, Any]) -> bytes:
    """The body of `POST /v0/topics/:t/scan`."""
    return json.dumps({"from_seq": "earliest", **_fields(given, SCAN)}).encode()


def split_request(given: Mapping[str, Any]) -> bytes:
    """The body of `POST /v0/topics/:t/split`."""
    fields = _fields(given, SPLIT)
    # The splits of a range cover what was evicted, too, whose scan says so with a gap.
    if fields.get("from_seq") == "earliest":
        fields["from_seq"] = 0
    return json.dumps(fields).encode()


def splits_of(answer: bytes) -> list[Split]:
    """The answer of `POST /v0/topics/:t/split`."""
    found = json.loads(answer)
    topic, topic_id = found["topic"], found["topic_id"]
    return [
        Split(topic, topic_id, part["from_seq"], part["to_seq"], part["records"], part["bytes"])
        for part in found["splits"]
    ]


def _fields(
    given: Mapping[str, Any], checks: Mapping[str, Callable[[str, object], Any]]
) -> dict[str, Any]:
    """The fields of a request; `None` is as if the argument were not given."""
    known = {NAMES.get(field, field): field for field in checks}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            renamed = NAMES.get(name)
            hint = f"; did you mean `{renamed}`?" if renamed in known else nearest(name, known)
            message = f"unknown option `{name}`{hint}"
            raise InvalidRequest(message, detail={"field": name})
        if value is not None:
            found[known[name]] = checks[known[name]](name, value)
    return found
