"""The server against its own OpenAPI document: requests made from it are answered as it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS

from support.gate import run_seed, sized
from support.http_client import Http
from support.server import Server
from topics_engine import _core
from topics_engine.asgi.openapi import PARAMETER, describe, operation_id
from topics_engine.asgi.route import Route
from topics_engine.asgi.routes import ROUTES

from .pending import DEADLINE

EXAMPLES = sized(4, 15, 200)
SCHEMA = schemathesis.openapi.from_dict(describe(_core.__version__))
NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
CONFORMANCE = CHECKS.get_by_names(NAMES)
NAME = st.sampled_from([None, "log", "log", "queue", "other"])
# One waits for the disk with each request, one has no end.
TRIED = [route for route in ROUTES if not route.endless and route.verb != "verify"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("schema") / "data"
    live = Server(directory)
    live.start()
    api = Http(live.port)
    assert api("PUT", "/v0/topics/log").status == 201
    assert api("PUT", "/v0/topics/queue", {"type": "queue"}).status == 201
    for name in ("log", "queue"):
        records = {"records": [{"data": n, "tag": "a"} for n in range(50)]}
        assert api("POST", f"/v0/topics/{name}", records).status == 200
        assert api("PUT", f"/v0/topics/{name}/consumers/{name}").status == 201
    api.close()
    try:
        yield live
        assert live.stop() == 0
    finally:
        live.ensure_dead()


@pytest.fixture(scope="module")
def chosen() -> int:
    """The seed of all routes, which is printed once."""
    return run_seed()


@pytest.mark.parametrize("route", TRIED, ids=operation_id)
def test_answers_are_as_the_document_says(server: Server, route: Route, chosen: int) -> None:
    operation = SCHEMA[PARAMETER.sub(r"{\1}", route.path)][route.method]
    tried = 0
    with requests.Session() as session:

        @seed(chosen)  # seed: fixed unless the gate explores
        @settings(  # seed: no deadline
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), name=NAME)
        def attempt(case: schemathesis.Case, name: str | None) -> None:
            nonlocal tried
            # A name that means nothing to the server is refused before anything else.
            if name is not None:
                case.path_parameters = dict.fromkeys(case.path_parameters or {}, name)
            if isinstance(case.body, dict) and "wait_ms" in case.body:
                case.body["wait_ms"] = 1
            try:
                response = case.call(base_url=server.url, session=session, timeout=DEADLINE)
            except requests.exceptions.ChunkedEncodingError:
                # A scan as text breaks off at a binary record, which other routes may have written.
                assert route.verb == "scan"
                return
            case.validate_response(response, checks=CONFORMANCE)
            tried += 1

        attempt()
    assert tried > 0
