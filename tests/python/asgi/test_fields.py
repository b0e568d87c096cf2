"""Fields of requests by the table of routes: each is refused by its name when its value is of
another kind, and with the name that was meant when it is misspelt; `null` is as if it were absent;
each is used by a case that succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import pytest

from support.http_client import Http
from topics_engine.asgi.openapi import operation, operation_id
from topics_engine.asgi.route import Field, Kind, Route
from topics_engine.asgi.routes import CONFIG, ROUTES

from .test_conformance import ALL_GOOD, place, route_of

NUMBERS = [-1, 1.5, 1e30, 2**64, "5", None, True, [], {}]
NAMES = [5, True, None, {}, [5], ["a", None]]
# Values that a field of a kind does not have.
WRONG: dict[Kind, list[Any]] = {
    "array of integers": [1, "a", None, {}, ["a"], [-1], [1.5], [None], [2**64]],
    "array of objects": [{}, "a", 5, None, [1], ["a"], [[]], [None]],
    "array of strings": ["a", 5, None, {}, [1], [None], [["a"]]],
    "array of strings or integers": ["a", 5, None, {}, ["a"], [-1], [1.5], [None], [[]], [2**64]],
    "boolean": ["yes", "true", 1, 0, None, [], {}],
    "config": [5, "a", [], None, True],
    "integer": NUMBERS,
    "integer or boolean": [n for n in NUMBERS if n is not True],
    "match": [5, True, {}, [], ["tag"], ["tag", "Eq"], ["tag", "Eq", 5], ["tag", "Like", "x"],
              ["node", "Eq", "x"], ["tag", "Glob", "x"], ["tag", "Glob", "*x"],
              ["tag", "Glob", "x*y*"], ["tag", "Eq", "x", "y"], "x*y*"],
    "object": [5, "a", None, True],
    "string": [5, 1.5, True, None, [], {}],
    "string or array of strings": NAMES,
    "string or integer": ["now", "", "5", -1, 1.5, 2**64, None, True, [], {}],
}  # fmt: skip
# Words of which a string is one.
WORDS = {
    "type", "durability", "discard", "consistency", "data_type", "mode", "start", "to", "guarantee",
    "state", "compression",
}  # fmt: skip
# What is a value although its kind says no.
ALLOWED: dict[str, list[Any]] = {"dead_letter": [None], "priority": [-1, None]}
# Where `null` is not the same as nothing: a nack without a delay is a nack at once.
MEANT = {("nack", "delay_ms")}
ONE = [{"topic": "x", "records": [{"data": 1}]}]
# What a body needs besides the field that is looked at.
NEEDED: dict[str, dict[str, Any]] = {
    "write": {"records": [{"data": 1}]},
    "seek": {"ts": 1},
    "claim": {"node": "w"},
    **{verb: {"node": "w", "seqs": [1]} for verb in ("ack", "nack", "release", "extend")},
    **{verb: {"seqs": [1]} for verb in ("jobs_remove", "jobs_promote")},
    "router_put": {"source": "x", "dest": "y"},
    "consumer_commit": {"seq": 1},
    "txn": {"appends": ONE},
    "txn_stage": {"appends": ONE},
    "txn_commit": {"epoch": 1},
    "txn_owner": {"owner": "0123456789abcdef"},
    "watch_create": {"topics": ["x"]},
    "delete": {"before_seq": 1},
}
# Of a query.
ASKED = {"watch_query": "topic=x", "work": "node=w", "txn_stage": "part=0"}
WRONG_TEXT: dict[Kind, list[str]] = {
    "integer": ["x", "-1", "+1", "1.5", "1e3", "%20", "99999999999999999999", "%ff", "%2"],
    "boolean": ["yes", "2", "-1", "%ff"],
    "integer or boolean": ["x", "yes", "-1", "1.5", "%ff"],
    "string": ["%ff", "%c3", "%zz"],
    "string or array of strings": ["%ff"],
    "string or integer": ["now", "-1", "1.5", "%ff"],
    "match": ["%ff", "x*y*"],
}
# What stands within an array or object of a body: where, by the kind of each field.
RECORD: dict[str, list[Any]] = {
    "data_b64": [5, None, "!", "YQ", "YQ=a", []],
    "tag": WRONG["string"],
    "node": WRONG["string"],
    "group": WRONG["string"],
    "meta": [5, "a", None, [], {"k": 1}, {"k": None}, {"k": {}}, {"$k": "v"}, {"_topics_k": "v"}],
    **dict.fromkeys(("ttl_ms", "delay_ms", "deliver_at"), NUMBERS),
    "lane": [*NUMBERS, 10],
}
APPEND = {"topic": WRONG["string"], "node": WRONG["string"], "records": WRONG["array of objects"]}
HELD = {"queue": "x", "node": "w", "seqs": [1]}
CURSOR = {"topic": "x", "consumer": "c", "seq": 1}


class Within(NamedTuple):
    """An array of objects in the body of a verb: a good element, and wrong values of its fields."""

    verb: str
    array: str
    one: dict[str, Any]
    fields: dict[str, list[Any]]

    @property
    def route(self) -> Route:
        (route,) = (route for route in ROUTES if route.verb == self.verb)
        return route

    def path(self, name: str) -> str:
        """The path and the query that the verb needs."""
        query = f"?{ASKED[self.verb]}" if self.verb in ASKED else ""
        return place(self.route, name) + query

    def body(self, second: dict[str, Any]) -> dict[str, Any]:
        """A body whose second element of the array is this one."""
        return NEEDED[self.verb] | {self.array: [self.one, second]}


WITHIN = [
    Within("write", "records", {"data": 1}, RECORD),
    Within("txn", "appends", ONE[0], APPEND | {"expect_head": NUMBERS}),
    Within("txn_stage", "appends", ONE[0], APPEND),
    Within("txn_commit", "stages", {"id": "s", "parts": 1},
           {"id": WRONG["string"], "parts": [*NUMBERS, 0, 2**32], "records": NUMBERS}),
    *(Within(verb, "commits", CURSOR,
             {"topic": WRONG["string"], "consumer": WRONG["string"], "seq": NUMBERS})
      for verb in ("txn", "txn_commit")),
    *(Within(verb, "acks", HELD,
             {"queue": WRONG["string"], "node": WRONG["string"],
              "seqs": WRONG["array of integers"],
              "lease_ids": WRONG["array of strings or integers"]})
      for verb in ("txn", "txn_commit")),
]  # fmt: skip


def refused(clients: dict[str, Http], method: str, path: str, body: Any, names: str) -> None:
    """Every protocol says the same, and what it is about."""
    replies = [api(method, path, body) for api in clients.values()]
    for reply in replies:
        assert (reply.status, reply.code) == (400, "invalid_request"), (path, body, reply)
        assert names in reply.json["error"]["message"], (path, body, reply)
        assert reply.body == replies[0].body


def wrong(field: Field, verb: str) -> Iterator[Any]:
    """Values of other kinds, and words that a field does not know."""
    allowed = [*ALLOWED.get(field.name, []), *([] if verb == "create" else [None])]
    for value in WRONG[field.kind]:
        if not any(value is a or (value == a and type(value) is type(a)) for a in allowed):
            yield value
    if field.words:
        yield from ("", "other")


def test_words_and_nulls_of_the_table() -> None:
    words = {(r.verb, f.name): f.words for r in ROUTES for f in (*r.query, *(r.body or ()))}
    known = {name for (_, name), of in words.items() if of}
    assert known == WORDS
    assert not any(of for (verb, name), of in words.items() if name == "to" and verb == "redrive")
    nulls = {(r.verb, f.name) for r in ROUTES for f in r.body or () if f.or_null}
    assert nulls == MEANT | {("create", name) for name in ALLOWED}


BODIED = [route for route in ROUTES if route.body]


@pytest.mark.parametrize("route", BODIED, ids=operation_id)
def test_a_field_of_another_kind_is_refused_by_its_name(
    clients: dict[str, Http], route: Route
) -> None:
    query = f"?{ASKED[route.verb]}" if route.verb in ASKED else ""
    path = place(route, "fields") + query
    needed = NEEDED.get(route.verb, {})
    whole = "config" if route.verb == "create" else "the body"
    for value in ([1], "x", 5, True, None):
        refused(clients, route.method, path, b"null" if value is None else value, whole)
    for field in route.body or ():
        for value in wrong(field, route.verb):
            refused(clients, route.method, path, needed | {field.name: value}, field.name)
        if field.words:
            said = f'{field.name} must be one of {", ".join(field.words)}, not "other"'
            refused(clients, route.method, path, needed | {field.name: "other"}, said)
        if field.required:
            rest = {name: v for name, v in needed.items() if name != field.name}
            refused(clients, route.method, path, rest, field.name)
    for api in clients.values():
        assert api("GET", "/v0/topics/fields").status == 404, "a refusal leaves nothing behind"


each_within = pytest.mark.parametrize(
    "within", WITHIN, ids=lambda within: f"{within.verb}.{within.array}"
)


@each_within
def test_what_stands_within_a_field_is_refused_by_its_place(
    clients: dict[str, Http], within: Within
) -> None:
    method, path = within.route.method, within.path("within")
    for name, values in within.fields.items():
        for value in (value for value in values if value is not None):
            body = within.body(within.one | {name: value})
            refused(clients, method, path, body, name)
            said = [api(method, path, body).json["error"] for api in clients.values()]
            assert all("[1]" in error["message"] or "detail" in error for error in said), said
    for api in clients.values():
        assert api("GET", "/v0/topics/within").status == 404


@pytest.mark.parametrize("route", [r for r in ROUTES if r.query], ids=operation_id)
def test_a_parameter_of_another_kind_is_refused_by_its_name(
    clients: dict[str, Http], route: Route
) -> None:
    needed = ASKED.get(route.verb, "")
    body = NEEDED.get(route.verb)
    for field in route.query:
        for text in (*WRONG_TEXT[field.kind], *(("other",) if field.words else ())):
            query = "&".join(filter(None, (needed, f"{field.name}={text}")))
            refused(clients, route.method, f"{place(route, 'x')}?{query}", body, field.name)


def misspelt(name: str) -> str:
    """A name as somebody types it who is in a hurry."""
    middle = len(name) // 2
    swapped = name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]
    return swapped if swapped != name else name[:middle] + name[middle + 1 :]


def meant(
    clients: dict[str, Http], method: str, path: str, body: Any, given: str, name: str
) -> None:
    """Every protocol refuses a name, says it, and says which one was probably meant."""
    refused(clients, method, path, body, f"{given}`; did you mean `{name}`?")
    for api in clients.values():
        detail = api(method, path, body).json["error"]["detail"]
        assert (detail["field"], detail["nearest"]) == (given, name)


@pytest.mark.parametrize("route", [r for r in ROUTES if r.body is not None], ids=operation_id)
def test_an_unknown_field_is_refused_with_the_one_that_was_meant(
    clients: dict[str, Http], route: Route
) -> None:
    path = place(route, "unknown") + (f"?{ASKED[route.verb]}" if route.verb in ASKED else "")
    needed = NEEDED.get(route.verb, {})
    for field in route.body or ():
        given = misspelt(field.name)
        # A null of it, too: who sends that means the field.
        for value in (1, None):
            meant(clients, route.method, path, needed | {given: value}, given, field.name)
    for given in ("zzzzzzzz", "", "é", "records[0]", "x" * 1000, "\ud800"):
        shown = "\ufffd" if given == "\ud800" else given[:100]
        refused(clients, route.method, path, needed | {given: {"a": [1]}}, f"`{shown}`; ")
    for api in clients.values():
        assert api("GET", "/v0/topics/unknown").status == 404, "a refusal leaves nothing behind"


@each_within
def test_an_unknown_field_within_a_field_is_refused_by_its_place(
    clients: dict[str, Http], within: Within
) -> None:
    method, path = within.route.method, within.path("unknown")
    for name in within.fields:
        body = within.body(within.one | {misspelt(name): 1})
        given = f"`{within.array}[1].{misspelt(name)}`; did you mean `{name}`?"
        refused(clients, method, path, body, given)
    if within.array == "appends":
        body = within.body(within.one | {"records": [{"data": 1, "tagg": "t"}]})
        refused(clients, method, path, body, "records[0].tagg`; did you mean `tag`?")


def test_an_unknown_option_of_a_topic_is_refused(clients: dict[str, Http]) -> None:
    for name in ("from_seq", "topic_id", "tail"):
        given = misspelt(name)
        body = {"topics": {"x": {given: 1}}}
        refused(clients, "POST", "/v0/watch", body, f"`topics.{given}`; did you mean `{name}`?")


@pytest.mark.parametrize("route", BODIED, ids=operation_id)
def test_null_is_as_if_the_field_were_absent(clients: dict[str, Http], route: Route) -> None:
    """But in a config, and where it has a meaning."""
    query = f"?{ASKED[route.verb]}" if route.verb in ASKED else ""
    needed = NEEDED.get(route.verb, {})
    nulls = {
        field.name: None
        for field in route.body or ()
        if field.name not in needed and (route.verb, field.name) not in MEANT
    }
    if route.verb == "create":
        strict = [f.name for f in CONFIG if f.name not in ALLOWED]
        for name in strict:
            refused(clients, route.method, place(route, "null"), {name: None}, name)
        return
    for api in clients.values():
        assert api("PUT", "/v0/topics/x").status in (200, 201)
        path = place(route, "x") + query
        # What a field asks for is refused in the same words.
        bare, given = (api(route.method, path, body) for body in (needed, needed | nulls))
        assert (bare.status < 300, bare.code) == (given.status < 300, given.code), given
        if bare.status >= 400:
            assert bare.body == given.body


@pytest.mark.parametrize("route", ROUTES, ids=operation_id)
def test_an_unknown_parameter_is_refused_with_the_one_that_was_meant(
    clients: dict[str, Http], route: Route
) -> None:
    if route.verb == "socket":
        # It is tried where sockets are.
        return
    needed = ASKED.get(route.verb, "")
    body = NEEDED.get(route.verb, {}) if route.body is not None else None
    path = place(route, "x")
    for field in route.query:
        given = misspelt(field.name)
        for query in (f"{given}=1", given, f"{given}=%ff"):
            both = "&".join(filter(None, (needed, query)))
            meant(clients, route.method, f"{path}?{both}", body, given, field.name)
    for query, shown in (("zzzzzzzz=1", "zzzzzzzz"), ("%ff", "\ufffd"), ("=1", "")):
        both = "&".join(filter(None, (needed, query)))
        refused(clients, route.method, f"{path}?{both}", body, f"query parameter `{shown}`; ")


def test_what_describes_other_bodies_is_refused_beside_json(clients: dict[str, Http]) -> None:
    for query in ("key=k", "tag=t", "node=n"):
        refused(clients, "POST", f"/v0/topics/x?{query}", NEEDED["write"], "use the field")


def used(route: Route) -> set[str]:
    """The fields that cases of a route which succeed have, in their bodies and queries."""
    found: set[str] = set()
    for case in ALL_GOOD.values():
        if route_of(case) is route:
            if isinstance(case.body, dict):
                found |= set(case.body)
            found |= set(parse_qs(case.path.partition("?")[2], keep_blank_values=True))
    return found


@pytest.mark.parametrize("route", ROUTES, ids=operation_id)
def test_every_field_is_used_by_a_case_that_succeeds(route: Route) -> None:
    known = {field.name for field in (*route.query, *(route.body or ()))}
    missing = known - used(route)
    assert not missing, f"no case in cases.py for {sorted(missing)} of {route.path}"


@pytest.mark.parametrize("route", [r for r in ROUTES if r.body is not None], ids=operation_id)
def test_the_document_says_that_there_is_no_other_field(route: Route) -> None:
    content = operation(route)["requestBody"]["content"]
    schema = content["application/json"]["schema"]
    objects = 0

    def closed(value: Any) -> None:
        nonlocal objects
        if isinstance(value, list):
            for one in value:
                closed(one)
        if isinstance(value, dict):
            if "properties" in value:
                objects += 1
                # Columns take the fields of a scan, too.
                open_to = route.verb == "diff"
                assert value.get("additionalProperties", True) is open_to, value
            for one in value.values():
                closed(one)

    if "$ref" not in schema:
        closed(schema)
        assert objects > 0
