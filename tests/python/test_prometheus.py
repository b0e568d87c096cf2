"""A Prometheus that scrapes a live server evaluates the dashboard's queries and the alert rules."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import topics_engine as te
from support.gate import GATE
from support.ports import free_port
from support.server import Server

from .test_dashboards import PANELS, ROOT, RULES

ALERTS = ROOT / "docs/prometheus/alerts.yml"
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
# What makes the condition of an alert of its value.
CONDITION = re.compile(r" (==|<|>) [\d.]+$")
# A loop that has panicked has a line: none has. No drill is scraped.
EMPTY = {
    "increase(topics_loop_panics_total[10m])",
    "topics_drill_ok",
    "(time() - topics_drill_timestamp_seconds) / 86400",
}
TIMEOUT = 120.0

pytestmark = pytest.mark.slow


def program(name: str) -> str:
    """The path of a program of Prometheus (`PROMETHEUS_BIN` is its folder); skips or fails."""
    path = shutil.which(name, path=os.environ.get("PROMETHEUS_BIN")) or shutil.which(name)
    if path is None:
        reason = f"no {name}: install the package prometheus, or set PROMETHEUS_BIN to its folder"
        pytest.fail(reason) if GATE == "release" else pytest.skip(reason)
    return path


class Prometheus:
    """The HTTP API of a Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **query: str) -> Any:
        url = f"{self.url}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            found = json.load(response)
        assert found["status"] == "success", found
        return found["data"]

    def values(self, query: str) -> list[float]:
        """The values of a query now, without those of no meaning."""
        found = self.get("query", query=query)["result"]
        return [value for one in found if not math.isnan(value := float(one["value"][1]))]


def use(url: str, ended: threading.Event) -> None:
    """Does everything that has a metric, again and again."""
    with te.connect(url) as db:
        log, jobs = db.topic("log"), db.queue("jobs", max_deliveries=2)
        log.create()
        consumer = log.consumer("c", start="earliest")
        capped = db.topic("capped", cap_records=10)
        seen = db.watch({"log": te.EARLIEST})
        while not ended.is_set():
            log.append([{"n": n} for n in range(10)], sync=True)
            capped.append([1] * 50)
            next(seen)
            consumer.read()
            list(log.read(limit=10))
            jobs.append([1, 2, 3])
            for job in jobs.claim("w", max=2):
                job.nack(error="no")
            for job in jobs.claim("w", max=1):
                job.ack()
            with pytest.raises(te.TopicsError):
                db.topic("missing").state()
            ended.wait(0.05)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has scraped a server several times while it was used."""
    command, folder = program("prometheus"), tmp_path_factory.mktemp("prometheus")
    remote = {"TOPICS_REMOTE_URL": f"file://{folder}/remote"}
    with Server(folder / "data", env=remote) as server:
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {
                    "job_name": "topics",
                    "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        port = free_port()
        arguments = [
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
        ended = threading.Event()
        user = threading.Thread(target=use, args=(server.url, ended), daemon=True)
        user.start()
        try:
            with subprocess.Popen([command, *arguments]) as process:
                try:
                    yield scraped(Prometheus(port), process)
                finally:
                    process.kill()
        finally:
            ended.set()
            user.join(60)


def scraped(api: Prometheus, process: subprocess.Popen[bytes]) -> Prometheus:
    """Waits until it has several samples."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        assert process.poll() is None, "Prometheus has ended"
        assert time.monotonic() < deadline, "Prometheus scrapes nothing"
        try:
            if api.values("count_over_time(topics_ready[1m])") >= [6.0]:
                return api
        except OSError:
            pass  # It starts.
        time.sleep(0.1)


@pytest.mark.parametrize("query", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_a_panel_has_data(query: str, prometheus: Prometheus) -> None:
    query = query.replace("$__rate_interval", "1m")
    query = query.replace("$job", ".*").replace("$instance", ".*")
    assert "$" not in query
    deadline = time.monotonic() + TIMEOUT
    while not prometheus.values(query):
        assert time.monotonic() < deadline, "no data"
        time.sleep(0.2)


def test_alert_rules_are_evaluated(prometheus: Prometheus) -> None:
    (group,) = prometheus.get("rules")["groups"]
    deadline = time.monotonic() + TIMEOUT
    while any(rule["health"] == "unknown" for rule in group["rules"]):
        assert time.monotonic() < deadline
        (group,) = prometheus.get("rules")["groups"]
    assert [(rule["name"], rule["health"]) for rule in group["rules"]] == [
        (rule["alert"], "ok") for rule in RULES
    ]
    for rule in RULES:
        query = CONDITION.sub("", rule["expr"])
        assert bool(prometheus.values(query)) == (query not in EMPTY), query


def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(ALERTS)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout
