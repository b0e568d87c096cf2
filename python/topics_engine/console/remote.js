// The object store that backs the server up: its state, how far it is behind, and its newest base.

import { ago, bytes, count, duration, time } from "./format.js";
import { Badge, Facts, useMay } from "./parts.js";
import { html } from "./vendor-preact.js";

/** The title of each state and what it means; of a bad one, what to do about it. Others have a kind. */
const STATES = {
  starting: { title: "starting", kind: "", says: "No request was made yet." },
  ok: { title: "shipping", kind: "good", says: "What is written can be restored from the store." },
  failing: {
    title: "failing",
    says: "Requests to the object store fail. Writes go on, and wait on the disk to be shipped.",
    fix: "They are repeated without you. Check the network, the credentials and the store.",
  },
  broken: {
    title: "broken chain",
    says: "The log that waited for the object store was given up, because it took too much space.",
    fix: "A new base begins without you once the store answers. If the store is too slow, raise remote_wal_bytes.",
  },
  refused: {
    title: "refused",
    says: "The prefix in the object store is not the one of this directory: nothing is shipped.",
    fix: "Correct remote_url, or mount the folder. To change to another prefix, stop the server and run topics remote forget.",
  },
  unsuitable: {
    title: "unsuitable",
    says: "The server of the object store lacks what a remote needs: nothing is shipped.",
    fix: "Run topics doctor --remote URL, which lists what is missing, and use another server.",
  },
  fenced: {
    title: "fenced",
    says: "Another process has taken the prefix in the object store: nothing is shipped.",
    fix: "Only one process may write to a prefix. If the other one took over, stop this server; else give one of them a prefix of its own.",
  },
};

/** The state of the object store `{title, says, kind?, fix?}`; `undefined` without one. */
export function remoteState(metrics) {
  const name = metrics.of("topics_remote_state").find(({ value }) => value === 1)?.labels.state;
  return name && (STATES[name] ?? { title: name, says: "This console does not know the state.", fix: "Read the server's log." });
}

/** A duration in seconds. */
const lag = (seconds) => (seconds ? duration(seconds * 1000) : "0 s");

/** A time in seconds since the epoch; 0 is none. */
const moment = (seconds) => (seconds ? `${time(seconds * 1000)}, ${ago(seconds * 1000)}` : "none since the start");

const FACTS = [
  ["topics_remote_lag_seconds", "age of the newest state to restore", lag],
  ["topics_remote_lag_bytes", "log bytes that wait to be shipped", bytes],
  ["topics_remote_last_success_timestamp_seconds", "newest state to restore", moment],
  ["topics_remote_last_base_timestamp_seconds", "last base", moment],
  ["topics_remote_chain_broken_total", "broken chains since the start", count],
  ["topics_archive_lag_bytes", "bytes that wait for a pack", bytes],
  ["topics_archive_lag_seconds", "oldest of them waits for", lag],
  ["topics_packs", "packs", count],
  ["topics_pack_bytes", "bytes of the packs", bytes],
  ["topics_cold_reads_total", "requests for cold records", count],
  ["topics_cold_read_failures_total", "failed requests for cold records", count],
  ["topics_cold_read_bytes_total", "bytes of cold records", bytes],
];

/** The object store, or how to have one. `reason` is why its state is bad, as the server says it. */
export function Remote({ metrics, reason }) {
  const state = remoteState(metrics);
  const may = useMay();
  if (!state) {
    return html`
      <h2>Object store</h2>
      <p class="empty">
        None: if the disk of this server is lost, so is what was written since your last backup. To ship each write to
        an object store, start the server with <code>TOPICS_REMOTE_URL</code> (the setting <code>remote_url</code>),
        for example <code>s3://bucket/prefix</code> or <code>file:///directory</code>.
      </p>`;
  }
  const why = reason ?? (may("admin") ? undefined : "The server's log says why; a key with scope admin sees it here.");
  const known = FACTS.map(([name, title, show]) => [title, metrics.value(name), show])
    .filter(([, value]) => value !== undefined);
  return html`
    <h2>Object store <${Badge} kind=${state.kind ?? "bad"}>${state.title}<//></h2>
    <p>${state.says}</p>
    ${state.fix && why && html`<p class="notice bad">${why}</p>`}
    <${Facts} of=${known.map(([title, value, show]) => [title, show(value)])} />`;
}
