"""A client that is generated from the OpenAPI document does what the quickstart does."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.server import opened
from topics_engine import _core
from topics_engine.asgi.openapi import PARAMETER, describe, operation_id
from topics_engine.asgi.routes import ROUTES

# Bodies and answers that are no JSON: the generator leaves them out, and says so.
NO_JSON = {"POST /v0/topics/{t}", "POST /v0/topics/{t}/scan", "POST /v0/txn/{writer}/stage/{id}"}


def generate(folder: Path) -> str:
    """Generates a package named `made`; returns what the generator says."""
    (folder / "api.json").write_text(json.dumps(describe(_core.__version__)))
    (folder / "config.json").write_text(json.dumps({"post_hooks": []}))
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from openapi_python_client.cli import app; app()", "generate"),
            *("--path", "api.json", "--config", "config.json"),
            *("--meta", "none", "--output-path", "made"),
        ],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The generated package: its operations, its models and its client."""
    said = generate(tmp_path)
    assert set(re.findall(r"WARNING parsing (.+) within default", said)) == NO_JSON, said
    monkeypatch.syspath_prepend(str(tmp_path))
    models = importlib.import_module("made.models")

    def operation(name: str) -> Any:
        return importlib.import_module(f"made.api.default.{name}")

    client = importlib.import_module("made.client").Client
    yield SimpleNamespace(operation=operation, models=models, client=client)
    for name in [name for name in sys.modules if name.split(".")[0] == "made"]:
        del sys.modules[name]


@pytest.mark.slow
def test_the_quickstart_with_a_generated_client(made: Any, tmp_path: Path) -> None:
    for route in ROUTES:
        if PARAMETER.sub(r"{\1}", f"{route.method} {route.path}") not in NO_JSON:
            assert made.operation(operation_id(route)), "each operation is there"
    with opened(tmp_path / "data") as server, made.client(base_url=server.url) as client:

        def call(name: str, *path: str, **asked: Any) -> Any:
            answer = made.operation(name).sync(*path, client=client, **asked)
            assert type(answer).__name__ != "Error", answer
            return answer

        m = made.models
        config = m.Config.from_dict({"durability": "fsync"})
        created = call("put_topics_t", "orders", body=config)
        assert isinstance(created, m.CreateAnswer)
        assert (created.created, created.config.durability) == (True, "fsync")

        def records(*rows: dict[str, Any]) -> Any:
            return m.PostTopicsTJsonBody(records=[m.NewRecord.from_dict(row) for row in rows])

        ack = call("post_topics_t", "orders", body=records({"data": {"id": 1}, "tag": "eu:7"},
                                                           {"data": {"id": 2}}))  # fmt: skip
        assert isinstance(ack, m.WriteAnswer)
        assert (ack.seqs, ack.head_seq, ack.durability) == ([1, 2], 2, "fsync")
        assert ack.performance.server_total_ms > 0

        page = call("post_topics_t_diff", "orders", body=m.PostTopicsTDiffBody(from_seq=0))
        assert [(r.seq, r.data) for r in page.records] == [(1, {"id": 1}), (2, {"id": 2})]
        assert (page.next_from_seq, page.caught_up, page.tombstone) == (2, True, None)
        tagged = m.PostTopicsTDiffBody(from_seq=0, match="eu:*", include_tags=True)
        assert [r.tag for r in call("post_topics_t_diff", "orders", body=tagged).records] == [
            "eu:7"
        ]

        state = call("get_topics_t", "orders")
        assert (state.head_seq, state.count, state.config.type_) == (2, 2, "log")
        assert [t.topic for t in call("get_topics").topics] == ["orders"]

        routed = call("put_routers_r", "orders->audit",
                      body=m.PutRoutersRBody(source="orders", dest="audit"))  # fmt: skip
        assert (routed.router, routed.created, routed.stopped_by) == ("orders->audit", True, None)

        call("put_topics_t_consumers_c", "orders", "billing", body=m.PutTopicsTConsumersCBody())
        read = call("post_topics_t_consumers_c_read", "orders", "billing",
                    body=m.PostTopicsTConsumersCReadBody(max_records=1))  # fmt: skip
        assert ([r.data for r in read.records], read.lag) == ([{"id": 1}], 1)
        commit = m.PostTopicsTConsumersCCommitBody(seq=read.next_from_seq)
        done = call("post_topics_t_consumers_c_commit", "orders", "billing", body=commit)
        assert done.cursor == 1

        call("put_topics_t", "mails", body=m.Config.from_dict({"type": "queue"}))
        call("post_topics_t", "mails", body=records({"data": {"to": "a"}}))
        job = m.PostTopicsQClaimBody(node="worker-1")
        assert call("post_topics_q_claim", "mails", body=job).count == 1
        acked = m.PostTopicsQAckBody(node="worker-1", seqs=[1])
        assert call("post_topics_q_ack", "mails", body=acked).in_flight == 0

        watch = m.PostWatchBody.from_dict({"topics": {"orders": {}}})
        session = call("post_watch", body=watch)
        assert session.wid.startswith("wid_")
        assert session.topics.additional_properties["orders"].head_seq == 2
        gone = call("post_topics_t_delete", "orders", body=m.PostTopicsTDeleteBody(seqs=[1]))
        assert (gone.deleted, gone.earliest_seq) == (1, 2)

        refused = made.operation("get_topics_t").sync("none", client=client)
        assert isinstance(refused, m.Error)
        assert refused.error.code == "topic_not_found"
