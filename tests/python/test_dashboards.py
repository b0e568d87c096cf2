"""The dashboard and the alert rules: made from their tables, and every query has its families."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.http_client import Http
from support.server import Server
from support.waiting import until
from topics_engine.cli import main

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "docs/grafana/topics.json").read_text())
RULES = yaml.safe_load((ROOT / "docs/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(rule["expr"] for rule in RULES),
]

# Functions and words of PromQL that the queries use; any other word is a metric or a label.
WORDS = {
    *"sum min max topk by rate increase histogram_quantile predict_linear time".split(),
}
# Prometheus itself adds these labels and this metric.
ADDED = {"job", "instance"}
NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric of a live server where everything was used once, and of a drill."""
    folder = tmp_path_factory.mktemp("dashboards")
    remote, drilled = f"file://{folder}/remote", folder / "drill.prom"
    with Server(folder / "data", env={"TOPICS_REMOTE_URL": remote}) as server:
        api = Http(server.port)
        assert api("PUT", "/v0/topics/jobs", {"type": "queue"}).status == 201
        for topic in ("jobs", "log"):
            body = {"records": [{"data": 1}], "sync": True}
            assert api("POST", f"/v0/topics/{topic}", body).status in (200, 201)
        assert api("PUT", "/v0/topics/log/consumers/c", {}).status == 201

        def metrics() -> str:
            answer = api("GET", "/metrics", headers={"Accept": "text/plain"})
            text: str = answer.body.decode()
            return text

        shipped = "topics_remote_last_success_timestamp_seconds 0\n"
        until(lambda: shipped not in metrics(), 60)
        text = metrics()
        api.close()
    assert main(["verify", remote, "--drill", "--metrics", str(drilled)]) == 0
    text += drilled.read_text()
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            found.setdefault(line.split()[2], set())
        elif sample := SAMPLE.fullmatch(line):
            labels = re.findall(rf'({NAME})="', sample[2] or "")
            found.setdefault(sample[1], set()).update(labels)
    # A loop that panicked has a line; none has.
    assert found["topics_loop_panics_total"] == set()
    found["topics_loop_panics_total"] = {"loop"}
    return found


def parts(query: str) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics of a query with the labels that they are matched by, and those it groups by."""
    metrics: dict[str, set[str]] = {}
    grouped: set[str] = set()

    def group(found: re.Match[str]) -> str:
        grouped.update(part.strip() for part in found[1].split(","))
        return " "

    query = re.sub(r"\bby \(([^)]*)\)", group, query)
    query = re.sub(r"\[[^\]]*\]", " ", query)
    for name, matchers in re.findall(rf"({NAME})(\{{[^}}]*\}})?", query):
        if name in WORDS or name[0] == "e":
            continue
        metrics[name] = set(re.findall(rf"({NAME})(?:=~|!~|!=|=)\"", matchers))
        query = query.replace(matchers, "") if matchers else query
    return metrics, grouped


def answered(query: str, families: dict[str, set[str]]) -> list[str]:
    """What is wrong with a query."""
    metrics, grouped = parts(query)
    wrong = []
    for name, matched in metrics.items():
        if name == "up":
            continue
        if name not in families:
            wrong.append(f"no metric {name}")
            continue
        missing = (matched | grouped) - families[name] - ADDED
        wrong += [f"{name} has no label {label}" for label in sorted(missing)]
    return wrong if metrics else ["no metric at all"]


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_a_live_server_answers_every_query(query: str, families: dict[str, set[str]]) -> None:
    assert answered(query, families) == []


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("sum(rate(topics_apends_total[5m]))", ["no metric topics_apends_total"]),
        ("sum by (topic) (topics_topics)", ["topics_topics has no label topic"]),
        ('topics_ready{durability="x"}', ["topics_ready has no label durability"]),
        ("sum by (le) (rate(topics_append_seconds_bucket[5m]))", []),
        ("1 + 1", ["no metric at all"]),
    ],
)
def test_the_check_sees_faults(query: str, wrong: list[str], families: dict[str, set[str]]) -> None:
    assert answered(query, families) == wrong


def test_legends_and_texts_use_labels_that_are_there(families: dict[str, set[str]]) -> None:
    texts: list[tuple[str, str]] = [
        (target["legendFormat"], target["expr"]) for p in PANELS for target in p["targets"]
    ]
    texts += [
        (text.replace("$labels.", ""), rule["expr"])
        for rule in RULES
        for text in rule["annotations"].values()
    ]
    for text, query in texts:
        metrics, grouped = parts(query)
        for label in re.findall(r"\{\{ ?(\w+) ?\}\}", text):
            there = [grouped or families.get(name, set()) | ADDED for name in metrics]
            assert all(label in labels | ADDED for labels in there), (text, query)


def test_the_files_are_current_and_whole() -> None:
    done: Any = subprocess.run([sys.executable, ".ci/dashboards.py", "--check"], cwd=ROOT)
    assert done.returncode == 0
    assert len(QUERIES) > 60
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    for i, (x, y, w, h) in enumerate(places):
        assert x + w <= 24
        for ox, oy, ow, oh in places[:i]:
            assert x >= ox + ow or ox >= x + w or y >= oy + oh or oy >= y + h, "panels overlap"
