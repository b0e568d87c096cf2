// Where the records of a topic lie, by tier, and which ranges are lost.

import { get, topicPath } from "./api.js";
import { bytes, count, time } from "./format.js";
import { usePoll } from "./hooks.js";
import { Badge, Legend, Loading, Stale, Table } from "./parts.js";
import { html } from "./vendor-preact.js";

/** Tiers in the order in which records move through them. */
const TIERS = ["memory", "log", "segment", "cold"];

export function Segments({ name, topic }) {
  const loaded = usePoll((signal) => get(topicPath(name, "segments"), signal), [name]);
  if (!loaded.data) return html`<${Loading} of=${loaded} />`;
  const { segments } = loaded.data;
  const gaps = topic.gaps.map(([from, to, reason]) => ({ from, to, reason }));
  if (topic.evict_floor > 1) {
    gaps.unshift({ from: 1, to: topic.evict_floor - 1, reason: "evicted by a cap or a TTL" });
  }
  return html`
    <${Stale} of=${loaded} />
    <h2>Segments</h2>
    <${Map} segments=${segments} />
    <${Table} label="Segments" rows=${segments} id=${(s) => s.first_seq} empty="The topic has no records." columns=${[
      { title: "First seq", of: (s) => count(s.first_seq) },
      { title: "Last seq", number: true, of: (s) => count(s.last_seq) },
      { title: "Tier", of: (s) => html`<${Badge} kind="tier-${tierIndex(s.tier)}">${s.tier}<//>` },
      { title: "Records", number: true, of: (s) => count(s.count) },
      { title: "Payload", number: true, of: (s) => bytes(s.bytes) },
      { title: "File", number: true, of: (s) => bytes(s.file_bytes) },
      { title: "Sealed", of: (s) => ({ true: "yes", false: "no" })[s.sealed] ?? "–" },
      { title: "From", of: (s) => time(s.first_ts) },
      { title: "To", of: (s) => time(s.last_ts) },
    ]} />
    <h2>Gaps and evicted records</h2>
    <${Table} label="Gaps" rows=${gaps} id=${(g) => g.from} empty="No record was lost." columns=${[
      { title: "First seq", of: (g) => count(g.from) },
      { title: "Last seq", number: true, of: (g) => count(g.to) },
      { title: "Seqs", number: true, of: (g) => count(g.to - g.from + 1) },
      { title: "Reason", of: (g) => g.reason },
    ]} />`;
}

const tierIndex = (tier) => Math.max(0, TIERS.indexOf(tier));

/** A bar of the topic's seqs, coloured by tier. The table below has its numbers. */
function Map({ segments }) {
  const whole = segments.reduce((sum, s) => sum + s.count, 0);
  if (!whole) return null;
  const tiers = [...new Set(segments.map((s) => s.tier))];
  return html`
    <div class="map" aria-hidden="true">
      ${segments.map((s) => html`<i key=${s.first_seq} class="tier-${tierIndex(s.tier)}"
        style=${{ flexGrow: s.count / whole }} title="${s.first_seq}–${s.last_seq}, ${s.tier}"></i>`)}
    </div>
    <${Legend} of=${tiers.map((tier) => [`tier-${tierIndex(tier)}`, tier])} />`;
}
