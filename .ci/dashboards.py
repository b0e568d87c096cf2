"""Makes the Grafana dashboard and the Prometheus alert rules from the tables here.

`--check` compares the files with what would be written. A test takes every query to a live server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GRAFANA = ROOT / "docs/grafana/topics.json"
PROMETHEUS = ROOT / "docs/prometheus/alerts.yml"

RATE = "[$__rate_interval]"
WHERE = '{job=~"$job",instance=~"$instance"}'


class Query(NamedTuple):
    """A PromQL expression, `%` for the labels of the server, and the legend of its lines."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel of the dashboard; `unit` is Grafana's name of it."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8


class Alert(NamedTuple):
    """An alert rule: when it fires, for how long it has to hold, and what to do."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    action: str


def quantiles(histogram: str, by: str = "") -> tuple[Query, ...]:
    """The median, the 99th and the 99.9th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        Query(f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket%{RATE})))",
              f"{name}{legend}")
        for q, name in (("0.5", "p50"), ("0.99", "p99"), ("0.999", "p99.9"))
    )  # fmt: skip


def per_second(counter: str, legend: str) -> Query:
    """The rate of a counter."""
    return Query(f"sum(rate({counter}%{RATE}))", legend)


ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        Panel("Ready", "bool_yes_no", (Query("min(topics_ready%)"),), "stat", 3),
        Panel("Records", "short", (Query("sum(topics_live_records%)"),), "stat", 3),
        Panel("Payload", "bytes", (Query("sum(topics_live_bytes%)"),), "stat", 3),
        Panel("Topics", "short", (Query("sum(topics_topics%)"),), "stat", 3),
        Panel("Disk free", "percentunit",
              (Query("min(topics_disk_free_bytes% / topics_disk_size_bytes%)"),), "stat", 3),
        Panel("Largest lag", "s", (Query("max(topics_consumer_lag_seconds%)"),), "stat", 3),
        Panel("Dead jobs", "short", (Query("sum(topics_jobs_dead%)"),), "stat", 3),
        Panel("Version", "string",
              (Query("max by (version) (topics_build_info%)", "{{version}}"),), "stat", 3),
    ),
    "Records": (
        Panel("Records a second", "ops", (
            per_second("topics_append_records_total", "appended"),
            per_second("topics_read_records_total", "read"),
            per_second("topics_watch_records_total", "streamed"),
        )),
        Panel("Bytes a second", "Bps", (
            per_second("topics_append_bytes_total", "appended"),
            per_second("topics_read_bytes_total", "read"),
            per_second("topics_wal_bytes_total", "written to the log"),
        )),
        Panel("Losses a second", "ops", (
            Query(f"sum by (reason) (rate(topics_tombstones_total%{RATE}))", "gaps: {{reason}}"),
            per_second("topics_evicted_records_total", "evicted records"),
        )),
        Panel("Head of each topic, records a second", "ops",
              (Query(f"topk(10, sum by (topic) (rate(topics_topic_head_seq%{RATE})))",
                     "{{topic}}"),), width=12),
        Panel("Lag of consumers", "short",
              (Query("topk(10, max by (topic, consumer) (topics_consumer_lag%))",
                     "{{topic}} {{consumer}}"),), width=12),
        Panel("Age of the first record that a consumer has not read", "s",
              (Query("topk(10, max by (topic, consumer) (topics_consumer_lag_seconds%))",
                     "{{topic}} {{consumer}}"),), width=12),
    ),
    "Latency": (
        Panel("Append", "s", quantiles("topics_append_seconds")),
        Panel("Disk sync", "s", quantiles("topics_fsync_seconds")),
        Panel("Delivery to streams", "s", quantiles("topics_delivery_seconds")),
    ),
    "Queues": (
        Panel("Jobs", "short", (
            Query("sum(topics_jobs_ready%)", "ready"),
            Query("sum(topics_queue_leases%)", "leased"),
            Query("sum(topics_jobs_delayed%)", "delayed"),
            Query("sum(topics_jobs_dead%)", "dead"),
        )),
        Panel("Jobs a second", "ops", (
            per_second("topics_claims_total", "claims"),
            per_second("topics_acked_jobs_total", "acked"),
            per_second("topics_nacked_jobs_total", "failed"),
            per_second("topics_released_jobs_total", "released"),
            per_second("topics_lease_expiries_total", "leases expired"),
            per_second("topics_dead_letters_total", "dead letters"),
        )),
        Panel("Ready jobs of each queue", "short",
              (Query("topk(10, sum by (topic) (topics_queue_ready%))", "{{topic}}"),)),
        Panel("Age of the oldest ready job of each queue", "s",
              (Query("topk(10, max by (topic) (topics_queue_oldest_ready_seconds%))",
                     "{{topic}}"),)),
    ),
    "HTTP": (
        Panel("Requests a second", "reqps",
              (Query(f"sum by (route, method) (rate(topics_http_requests_total%{RATE}))",
                     "{{method}} {{route}}"),)),
        Panel("Errors a second", "reqps",
              (Query("sum by (route, status) (rate(topics_http_requests_total"
                     f'{{job=~"$job",instance=~"$instance",status=~"[45].."}}{RATE}))',
                     "{{status}} {{route}}"),)),
        Panel("Duration, 99th percentile", "s",
              (Query("histogram_quantile(0.99, sum by (le, route) "
                     f"(rate(topics_http_request_seconds_bucket%{RATE})))", "{{route}}"),)),
        Panel("Open streams", "short", (
            Query("sum(topics_http_streams%)", "streams and sockets"),
            Query("sum(topics_watch_sessions%)", "watch sessions"),
        )),
        Panel("Throttled and strained a second", "ops", (
            per_second("topics_throttled_total", "throttled writes"),
            per_second("topics_strains_total", "strains"),
        )),
        Panel("Pressure", "percentunit", (Query("max(topics_pressure_ratio%)"),)),
    ),
    "Object store": (
        Panel("State", "short",
              (Query("sum by (state) (topics_remote_state%) > 0", "{{state}}"),), "stat", 3),
        Panel("Age of the newest state to restore", "s",
              (Query("max(topics_remote_lag_seconds%)"),), width=9),
        Panel("Waits", "bytes", (
            Query("sum(topics_remote_lag_bytes%)", "log to be shipped"),
            Query("sum(topics_archive_lag_bytes%)", "segments to be packed"),
        ), width=12),
        Panel("Requests a second", "reqps",
              (Query(f"sum by (op, outcome) (rate(topics_remote_requests_total%{RATE}))",
                     "{{op}} {{outcome}}"),)),
        Panel("Bytes a second", "Bps",
              (Query(f"sum by (direction) (rate(topics_remote_bytes_total%{RATE}))",
                     "{{direction}}"),)),
        Panel("Cold reads a second", "ops", (
            per_second("topics_cold_reads_total", "reads"),
            per_second("topics_cold_read_failures_total", "failed"),
        )),
    ),
    "Log, disk and process": (
        Panel("Log", "bytes", (
            Query("sum(topics_wal_disk_bytes%)", "on disk"),
            Query("sum(topics_staged_bytes%)", "staged"),
        )),
        Panel("Syncs and checkpoints a second", "ops", (
            per_second("topics_wal_fsyncs_total", "syncs"),
            per_second("topics_checkpoints_total", "checkpoints"),
            per_second("topics_checkpoint_failures_total", "failed checkpoints"),
        )),
        Panel("Disk", "bytes", (
            Query("min(topics_disk_free_bytes%)", "free"),
            Query("max(topics_disk_size_bytes%)", "size"),
        )),
        Panel("Memory", "bytes", (
            Query("sum(process_resident_memory_bytes%)", "resident"),
        )),
        Panel("Processor", "percentunit",
              (Query(f"sum(rate(process_cpu_seconds_total%{RATE}))", "cores in use"),)),
        Panel("File descriptors", "percentunit",
              (Query("max(process_open_fds% / process_max_fds%)", "in use"),)),
    ),
}  # fmt: skip

ALERTS = (
    Alert("TopicsDown", "up{job=~\"topics.*\"} == 0", "1m", "critical",
          "{{ $labels.instance }} does not answer",
          "Look at the service and its log: `systemctl status topics`."),
    Alert("TopicsNotReady", "topics_ready == 0", "5m", "critical",
          "{{ $labels.instance }} accepts no requests",
          "A recovery that takes longer than usual shows its progress at /readyz."),
    Alert("TopicsReadOnly", "topics_read_only_shards > 0", "0m", "critical",
          "{{ $labels.instance }} refuses writes of {{ $value }} log shards",
          "A write or a sync failed: read the log, check the disk, then restart."),
    Alert("TopicsDiskFull", "topics_disk_free_bytes / topics_disk_size_bytes < 0.1", "5m",
          "warning", "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its disk",
          "Lower caps and TTLs, delete topics, or give the file system more space."),
    Alert("TopicsDiskFillsUp", "predict_linear(topics_disk_free_bytes[6h], 86400) < 0", "30m",
          "warning", "The disk of {{ $labels.instance }} is full within a day at this rate",
          "Find the topic that grows; set a cap or a TTL."),
    Alert("TopicsDamage", "increase(topics_corrupt_records_total[10m]) > 0", "0m", "critical",
          "{{ $labels.instance }} read records that fail their checksum",
          "Copy the directory, then run `topics verify`."),
    Alert("TopicsLosses",
          'increase(topics_tombstones_total{reason=~"crash|corrupt"}[10m]) > 0', "0m", "critical",
          "Readers of {{ $labels.instance }} were told of lost records ({{ $labels.reason }})",
          "Use durability fsync for topics that must survive a crash of the machine."),
    Alert("TopicsRemoteState", 'topics_remote_state{state!~"starting|ok"} > 0', "5m", "critical",
          "The object store of {{ $labels.instance }} is {{ $labels.state }}",
          "`topics doctor` says why; nothing is backed up in most of these states."),
    Alert("TopicsBackupLag", "topics_remote_lag_seconds > 60", "5m", "critical",
          "The backup of {{ $labels.instance }} is {{ $value | humanizeDuration }} behind",
          "Look at the log, and at the requests to the store. With remote_interval_ms=0 the limit "
          "is remote_base_interval_ms."),
    Alert("TopicsBackupBroken", "increase(topics_remote_chain_broken_total[10m]) > 0", "0m",
          "warning", "{{ $labels.instance }} gave up log that was not shipped",
          "Its next base ends the hole. Raise remote_wal_bytes, or the bandwidth."),
    Alert("TopicsDrillFailed", "topics_drill_ok < 1", "0m", "critical",
          "The last drill of {{ $labels.instance }} failed",
          "Run `topics verify URL --drill` by hand: it says what the copy lacks."),
    Alert("TopicsDrillOld", "(time() - topics_drill_timestamp_seconds) / 86400 > 10", "1h",
          "warning", "No drill of {{ $labels.instance }} for {{ $value | humanize }} days",
          "`systemctl list-timers topics-drill.timer`."),
    Alert("TopicsLoopPanic", "increase(topics_loop_panics_total[10m]) > 0", "0m", "warning",
          "The loop {{ $labels.loop }} of {{ $labels.instance }} panicked",
          "Report it with its log line; restart if a topic is closed."),
    Alert("TopicsCheckpointsFail", "increase(topics_checkpoint_failures_total[15m]) > 3", "5m",
          "warning", "Checkpoints of {{ $labels.instance }} fail",
          "Read the log: a full disk, or too few file descriptors."),
    Alert("TopicsSlowSync",
          "histogram_quantile(0.99, sum by (le, instance) "
          "(rate(topics_fsync_seconds_bucket[5m]))) > 0.25",
          "10m", "warning", "Syncs of {{ $labels.instance }} take {{ $value | humanizeDuration }}",
          "`topics doctor` measures the disk; another program may be using it."),
    Alert("TopicsConsumerLag", "topics_consumer_lag_seconds > 300", "5m", "warning",
          "{{ $labels.consumer }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}",
          "Look whether the consumer runs and how long a batch takes it."),
    Alert("TopicsJobsWait", "topics_queue_oldest_ready_seconds > 300", "5m", "warning",
          "A ready job of {{ $labels.topic }} waits for {{ $value | humanizeDuration }}",
          "Look whether the workers run, whether the queue is paused, and how long a job takes."),
    Alert("TopicsDeadJobs", "increase(topics_dead_letters_total[15m]) > 0", "0m", "warning",
          "Jobs of {{ $labels.instance }} used up their deliveries",
          "The console shows their errors; redrive or remove them."),
    Alert("TopicsServerErrors",
          'sum by (instance, route) (rate(topics_http_requests_total{status=~"5.."}[5m])) > 1',
          "5m", "warning", "{{ $labels.route }} of {{ $labels.instance }} fails",
          "Read the server's log."),
    Alert("TopicsDescriptors", "process_open_fds / process_max_fds > 0.9", "5m", "warning",
          "{{ $labels.instance }} has few file descriptors left",
          "Raise `ulimit -n` (LimitNOFILE), or lower max_open_files."),
)  # fmt: skip


def queries() -> list[str]:
    """Every expression of both files."""
    panels = [panel for row in ROWS.values() for panel in row]
    return [
        *(query.expr.replace("%", WHERE) for panel in panels for query in panel.queries),
        *(alert.expr for alert in ALERTS),
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False,
                       "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})  # fmt: skip
        y += 1
        x = 0
        for panel in row:
            height = 4 if panel.kind == "stat" else 8
            if x + panel.width > 24:
                x, y = 0, y + height
            at = {"x": x, "y": y, "w": panel.width, "h": height}
            panels.append(_panel(len(panels) + 1, panel, at))
            x += panel.width
        y += height
    return {
        "title": "topics_engine",
        "uid": "topics-engine",
        "tags": ["topics"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, ("job", "instance"))]},
        "panels": panels,
    }


SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values(topics_ready, {name})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"textMode": "name"} if panel.unit == "string" else {},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": SOURCE, "legendFormat": query.legend,
             "expr": query.expr.replace("%", WHERE)}
            for n, query in enumerate(panel.queries)
        ],
    }  # fmt: skip


def rules() -> str:
    """The alert rules as YAML; strings are quoted as JSON, which YAML contains."""
    lines = ["# Made by .ci/dashboards.py. Load it with `rule_files` of prometheus.yml.",
             "groups:", "  - name: topics", "    rules:"]  # fmt: skip
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {alert.hold}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.action)}",
        ]
    return "\n".join([*lines, ""])


def main() -> int:
    files = {GRAFANA: json.dumps(dashboard(), indent=1) + "\n", PROMETHEUS: rules()}
    if "--check" in sys.argv[1:]:
        stale = [
            path for path, text in files.items() if not path.exists() or path.read_text() != text
        ]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run .ci/dashboards.py")
        return 1 if stale else 0
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
