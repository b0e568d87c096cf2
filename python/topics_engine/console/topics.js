// The list of topics: rates, sizes, gaps and lag; search, create, edit, drop.

import { call, get, post, topicPath } from "./api.js";
import { ago, bytes, count, rate } from "./format.js";
import { useAction, usePoll, useRates } from "./hooks.js";
import { Act, Badge, Counters, Field, Form, Loading, Sparkline, Stale, Table } from "./parts.js";
import { ConfigForm } from "./topic-config.js";
import { html, useState } from "./vendor-preact.js";

const PAGE = 100;

/** One page of topics, each with its state, and with the largest lag of what reads it. */
export async function loadTopics({ prefix, cursor }, signal) {
  const query = new URLSearchParams({ prefix, page_size: PAGE, ...(cursor && { cursor }) });
  const page = await get(`v0/topics?${query}`, signal);
  const [states, consumers, routers] = await Promise.all([
    post("v0/state", { topics: page.topics.map((t) => t.topic) }, signal),
    get("v0/consumers?page_size=1000", signal),
    get("v0/routers?page_size=1000", signal),
  ]);
  const lags = new Map();
  for (const { topic, source, lag } of [...consumers.consumers, ...routers.routers]) {
    const name = topic ?? source;
    lags.set(name, Math.max(lags.get(name) ?? 0, lag));
  }
  // A topic that was deleted meanwhile has no state.
  const topics = page.topics.map((t) => ({ ...t, ...states.topics[t.topic], lag: lags.get(t.topic) }));
  return { topics, next: page.next_cursor };
}

export const topicLink = (name, view = "topics") =>
  html`<a href="#/${view}/${encodeURIComponent(name)}">${name}</a>`;

/** How many seqs a topic's limits evicted, and how many are lost in its gaps. */
export const evicted = (topic) => topic.evict_floor - 1;
export const gone = (topic) => topic.gaps.reduce((sum, [from, to]) => sum + to - from + 1, 0);

/** The class of a topic; the classes that a crash can take records from stand out. */
export const ClassBadge = ({ of }) =>
  html`<${Badge} kind=${of === "ephemeral" || of === "memory" ? "warn" : ""}>${of}<//>`;

export function TopicsView() {
  const [prefix, setPrefix] = useState("");
  const [cursors, setCursors] = useState([]);
  const [dialog, setDialog] = useState(null);
  const cursor = cursors.at(-1);
  const loaded = usePoll((signal) => loadTopics({ prefix, cursor }, signal), [prefix, cursor]);
  const topics = loaded.data?.topics;
  const heads = topics && Object.fromEntries(topics.map((t) => [t.topic, t.head_seq]));
  const rates = useRates(heads, loaded.at);
  if (!topics) return html`<h1>Topics</h1><${Loading} of=${loaded} />`;

  const sum = (field) => topics.reduce((total, t) => total + t[field], 0);
  const close = () => {
    setDialog(null);
    loaded.reload();
  };
  const search = (value) => {
    setCursors([]);
    setPrefix(value);
  };
  return html`
    <div class="title">
      <h1>Topics</h1>
      <${Act} needs="admin" kind="primary" onClick=${() => setDialog({ kind: "create" })}>Create topic<//>
    </div>
    <${Stale} of=${loaded} />
    <${Counters} of=${[
      [loaded.data.next || cursor ? "topics of this page" : "topics", count(topics.length)],
      ["records", count(sum("count"))],
      ["payload", bytes(sum("bytes"))],
      ["written", rate(topics.reduce((total, t) => total + (rates(t.topic).at(-1) ?? 0), 0))],
    ]} />
    <search class="tools">
      <${Field} label="Name begins with" type="search" value=${prefix} onInput=${search} data-shortcut="search"
        placeholder="press / to search" />
      <${Pager} cursors=${cursors} next=${loaded.data.next} onMove=${setCursors} />
    </search>
    <${Table} label="Topics" rows=${topics} id=${(t) => t.topic} columns=${columns(rates, setDialog)}
      empty=${prefix ? `No topic begins with "${prefix}".` : "There are no topics yet."} />
    ${dialog?.kind === "create" && html`<${ConfigForm} onClose=${close} />`}
    ${dialog?.kind === "edit" && html`<${ConfigForm} topic=${dialog.topic} onClose=${close} />`}
    ${dialog?.kind === "drop" && html`<${DropForm} topic=${dialog.topic} onClose=${close} />`}`;
}

const columns = (rates, open) => [
  { title: "Topic", of: (t) => html`${topicLink(t.topic)}${t.type === "queue" && html` <${Badge}>queue<//>`}` },
  { title: "Written", of: (t) => html`
    <div class="rate">
      <${Sparkline} values=${rates(t.topic)} /><span class="number">${rate(rates(t.topic).at(-1))}</span>
    </div>` },
  { title: "Records", number: true, of: (t) => count(t.count) },
  { title: "Payload", number: true, of: (t) => bytes(t.bytes) },
  { title: "Class", of: (t) => html`<${ClassBadge} of=${t.durability} />` },
  { title: "Head", number: true, of: (t) => count(t.head_seq) },
  { title: "Lost", number: true, of: (t) => t.gaps && html`
    <span class=${gone(t) ? "bad" : ""}>${count(evicted(t) + gone(t))}</span>
    ${evicted(t) > 0 && html`<small>${count(evicted(t))} by limits</small>`}` },
  { title: "Lag", number: true, of: (t) => count(t.lag) },
  { title: "Last write", of: (t) => ago(t.last_write_ts) },
  { title: html`<span class="hidden">Actions</span>`, kind: "actions", of: (t) => html`
    <${Act} needs="admin" kind="quiet" aria-label="Edit ${t.topic}"
      onClick=${() => open({ kind: "edit", topic: t })}>Edit<//>
    <${Act} needs="delete" kind="quiet" aria-label="Drop ${t.topic}"
      onClick=${() => open({ kind: "drop", topic: t })}>Drop<//>` },
];

/** Pages of a list: the cursors of the pages that led here, and the one of the next page. */
export function Pager({ cursors, next, onMove }) {
  if (!cursors.length && !next) return null;
  return html`
    <div class="pager">
      <button type="button" disabled=${!cursors.length} onClick=${() => onMove(cursors.slice(0, -1))}>Previous</button>
      <span>page ${cursors.length + 1}</span>
      <button type="button" disabled=${!next} onClick=${() => onMove([...cursors, next])}>Next</button>
    </div>`;
}

export function DropForm({ topic, onClose }) {
  const [typed, setTyped] = useState("");
  const action = useAction();
  const drop = () => call("DELETE", topicPath(topic.topic));
  return html`
    <${Form} title="Drop ${topic.topic}" onClose=${onClose} onSubmit=${drop} action=${action} submit="Drop topic"
      danger ready=${typed === topic.topic}>
      <p>This deletes <b>${count(topic.count)} records</b> (${bytes(topic.bytes)}), the consumers and the routers of
        the topic. It cannot be undone.</p>
      <${Field} label="Type the name to confirm" value=${typed} onInput=${setTyped} />
    <//>`;
}
