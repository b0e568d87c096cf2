// The engine: health, rates, latency histograms, pressure, log, checkpoints and memory.

import { call, get } from "./api.js";
import { Bars, Lines } from "./charts.js";
import { bytes, count, duration, percent, rate } from "./format.js";
import { health } from "./health.js";
import { useAction, usePoll, useRates } from "./hooks.js";
import { loadMetrics, quantile } from "./metrics.js";
import { Act, Badge, Counters, Facts, Loading, Notice, Stale, Table } from "./parts.js";
import { Remote, remoteState } from "./remote.js";
import { html } from "./vendor-preact.js";

const HISTOGRAMS = [
  ["topics_fsync_seconds", "Disk sync", "one fdatasync of the log"],
  ["topics_append_seconds", "Append", "from the call to the ack"],
  ["topics_delivery_seconds", "Delivery", "from the commit to the stream"],
];
const COUNTERS = {
  topics_append_records_total: "appended",
  topics_read_records_total: "read",
  topics_watch_records_total: "streamed",
  topics_wal_fsyncs_total: "syncs",
  topics_wal_bytes_total: "log bytes",
};
async function load(signal) {
  const [metrics, alive] = await Promise.all([loadMetrics(signal), get("v0/health", signal)]);
  const isBad = remoteState(metrics)?.fix !== undefined;
  const reason = isBad ? (await get("v0/metrics", signal)).remote_reason : undefined;
  return { metrics, alive, reason };
}

export function EngineView() {
  const loaded = usePoll(load, []);
  const action = useAction();
  const metrics = loaded.data?.metrics;
  const counters = metrics && Object.fromEntries(Object.keys(COUNTERS).map((name) => [name, metrics.value(name)]));
  const rates = useRates(counters, loaded.at);
  if (!metrics) return html`<h1>Engine</h1><${Loading} of=${loaded} />`;
  const { alive, reason } = loaded.data;
  const checks = health(metrics);
  const last = (name) => rates(name).at(-1);
  const checkpoint = () => action.run(() => call("POST", "v0/admin/checkpoint"));
  return html`
    <div class="title">
      <h1>Engine</h1>
      <span>version ${alive.version}, up ${duration(alive.uptime_ms)}</span>
      <span class="actions">
        <${Act} needs="admin" disabled=${action.busy} onClick=${checkpoint}>Checkpoint now<//>
      </span>
    </div>
    <${Notice} error=${action.error} />
    <${Stale} of=${loaded} />
    <${Counters} of=${[
      ["health", ...verdict(checks, loaded.error)],
      ["appended", rate(last("topics_append_records_total"))],
      ["read", rate(last("topics_read_records_total"))],
      ["pressure", percent(metrics.value("topics_pressure_ratio"))],
      ["log on disk", bytes(metrics.value("topics_wal_disk_bytes"))],
      ["disk free", bytes(metrics.value("topics_disk_free_bytes"))],
    ]} />
    <h2>Health</h2>
    <${Table} label="Health" rows=${checks} id=${(c) => c.title} columns=${[
      { title: "Check", of: (c) => c.title },
      { title: "State", of: (c) => html`<${Badge} kind=${c.isBad ? "bad" : "good"}>${c.isBad ? "look" : "good"}<//>` },
      { title: "What is wrong", kind: "wrap", of: (c) => (c.isBad ? c.says(metrics) : "–") },
      { title: "What to do", kind: "wrap", of: (c) => (c.isBad ? c.fix(metrics) : "–") },
    ]} />
    <${Remote} metrics=${metrics} reason=${reason} />
    <h2>Rates of the last minute</h2>
    <div class="beside">
      <${Lines} label="Records appended and read a second, in the last minute" lines=${[
        { title: "appended", values: rates("topics_append_records_total") },
        { title: "read", values: rates("topics_read_records_total") },
      ]} />
      <${Table} label="Rates" rows=${Object.entries(COUNTERS)} id=${([name]) => name} columns=${[
        { title: "Rate", of: ([, title]) => title },
        { title: "Now", number: true, of: ([name]) => rate(last(name)) },
        { title: "Since the start", number: true, of: ([name]) => count(metrics.value(name)) },
      ]} />
    </div>
    ${HISTOGRAMS.map((h) => html`<${Histogram} key=${h[0]} of=${h} metrics=${metrics} />`)}
    <h2>Log, checkpoints and memory</h2>
    <${Facts} of=${facts(metrics)} />`;
}

/** The health in a word, with its colour. */
function verdict(checks, error) {
  if (error) return ["unknown", "bad"];
  return checks.some((c) => c.isBad) ? ["look below", "bad"] : ["good", "good"];
}

function Histogram({ of: [name, title, meaning], metrics }) {
  const histogram = metrics.histogram(name);
  const used = histogram.buckets.filter((b) => b.count > 0);
  const range = used.length
    ? histogram.buckets.slice(histogram.buckets.indexOf(used[0]), histogram.buckets.indexOf(used.at(-1)) + 1)
    : [];
  const bound = (seconds) => (seconds === Infinity ? "more" : duration(seconds * 1000));
  const summary = [
    ["50 %", quantile(histogram, 0.5)],
    ["90 %", quantile(histogram, 0.9)],
    ["99 %", quantile(histogram, 0.99)],
    ["99.9 %", quantile(histogram, 0.999)],
    ["mean", histogram.count ? histogram.sum / histogram.count : undefined],
  ];
  return html`
    <h2>${title} <small>${meaning}, ${count(histogram.count)} since the start</small></h2>
    ${range.length ? html`
      <div class="beside">
        <${Bars} label="${title}: calls by duration" labels=${range.map((b) => bound(b.le))}
          values=${range.map((b) => b.count)} />
        <div>
          <${Table} label="${title}: quantiles" rows=${summary} id=${([share]) => share} columns=${[
            { title: "Share", of: ([share]) => share },
            { title: "Faster than", number: true, of: ([, seconds]) => (seconds === undefined ? "–" : bound(seconds)) },
          ]} />
          <details><summary>All buckets</summary>
            <${Table} label="${title}: buckets" rows=${range} id=${(b) => b.le} columns=${[
              { title: "Up to", of: (b) => bound(b.le) },
              { title: "Calls", number: true, of: (b) => count(b.count) },
            ]} />
          </details>
        </div>
      </div>` : html`<p class="empty">None yet.</p>`}`;
}

const facts = (m) => {
  const whole = (name) => count(m.value(name));
  const perSync = m.value("topics_wal_batches_total") / Math.max(1, m.value("topics_wal_fsyncs_total"));
  return [
    ["topics", whole("topics_topics")],
    ["records", whole("topics_live_records")],
    ["payload", bytes(m.value("topics_live_bytes"))],
    ["records in memory", whole("topics_resident_records")],
    ["log files on disk", bytes(m.value("topics_wal_disk_bytes"))],
    ["log rotations", whole("topics_wal_rotations_total")],
    ["batches per sync", perSync.toFixed(1)],
    ["staged batches", whole("topics_staged_batches")],
    ["staged bytes", bytes(m.value("topics_staged_bytes"))],
    ["checkpoints", whole("topics_checkpoints_total")],
    ["failed checkpoints", whole("topics_checkpoint_failures_total")],
    ["segments rewritten", whole("topics_segments_rewritten_total")],
    ["open streams", whole("topics_watch_streams")],
    ["watch sessions", whole("topics_watch_sessions")],
    ["throttled writes", whole("topics_throttled_total")],
    ["open transactions", whole("topics_txns_open")],
    ["evicted records", whole("topics_evicted_records_total")],
  ];
};
