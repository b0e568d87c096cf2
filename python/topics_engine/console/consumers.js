// Consumers and routers: how far each is, and what moves them.

import { call, get, post, topicPath } from "./api.js";
import { count, duration } from "./format.js";
import { useAction, usePoll } from "./hooks.js";
import { Act, Badge, Counters, Field, Form, Loading, Stale, Table } from "./parts.js";
import { Pager, topicLink } from "./topics.js";
import { html, useState } from "./vendor-preact.js";

const PAGE = 100;
const consumerPath = (c, below) => topicPath(c.topic, `consumers/${encodeURIComponent(c.consumer)}${below ?? ""}`);
const routerPath = (name) => `v0/routers/${encodeURIComponent(name)}`;
const slower = (a, b) => b.lag - a.lag;

async function load(cursors, signal) {
  const page = (cursor) => new URLSearchParams({ page_size: PAGE, ...(cursor && { cursor }) });
  const [consumers, routers] = await Promise.all([
    get(`v0/consumers?${page(cursors.consumers.at(-1))}`, signal),
    get(`v0/routers?${page(cursors.routers.at(-1))}`, signal),
  ]);
  return { consumers, routers };
}

export function ConsumersView() {
  const [cursors, setCursors] = useState({ consumers: [], routers: [] });
  const loaded = usePoll((signal) => load(cursors, signal), [cursors]);
  const [dialog, setDialog] = useState(null);
  if (!loaded.data) return html`<h1>Consumers and routers</h1><${Loading} of=${loaded} />`;
  const { consumers, routers } = loaded.data;
  const close = () => {
    setDialog(null);
    loaded.reload();
  };
  const pager = (kind) => html`<${Pager} cursors=${cursors[kind]} next=${loaded.data[kind].next_cursor}
    onMove=${(to) => setCursors({ ...cursors, [kind]: to })} />`;
  const most = (rows) => count(Math.max(0, ...rows.map((r) => r.lag)));
  return html`
    <div class="title">
      <h1>Consumers and routers</h1>
      <span class="actions">
        <${Act} needs="read+write" onClick=${() => setDialog({ kind: "consumer" })}>Add consumer<//>
        <${Act} needs="admin" onClick=${() => setDialog({ kind: "router" })}>Add router<//>
      </span>
    </div>
    <${Stale} of=${loaded} />
    <${Counters} of=${[
      ["consumers", count(consumers.consumers.length)],
      ["largest lag", most(consumers.consumers)],
      ["routers", count(routers.routers.length)],
      ["largest router lag", most(routers.routers)],
    ]} />
    <h2>Consumers</h2>
    ${pager("consumers")}
    <${Table} label="Consumers" rows=${[...consumers.consumers].sort(slower)} id=${(c) => `${c.topic}/${c.consumer}`}
      empty="There are no consumers." columns=${consumerColumns(setDialog)} />
    <h2>Routers</h2>
    ${pager("routers")}
    <${Table} label="Routers" rows=${[...routers.routers].sort(slower)} id=${(r) => r.router}
      empty="There are no routers." columns=${routerColumns(setDialog)} />
    ${dialog && html`<${DIALOGS[dialog.kind]} of=${dialog.of} onClose=${close} />`}`;
}

const consumerColumns = (open) => [
  { title: "Consumer", of: (c) => c.consumer },
  { title: "Topic", of: (c) => topicLink(c.topic) },
  { title: "Mode", of: (c) => c.mode.replaceAll("_", " ") },
  { title: "Cursor", number: true, of: (c) => count(c.cursor) },
  { title: "Lag, records", number: true, of: (c) => count(c.lag) },
  { title: "Lag, time", number: true, of: (c) => duration(c.lag_ms) },
  { title: html`<span class="hidden">Actions</span>`, kind: "actions", of: (c) => html`
    <${Act} needs="read+write" kind="quiet" aria-label="Seek ${c.consumer} of ${c.topic}"
      onClick=${() => open({ kind: "seek", of: c })}>Seek<//>
    <${Act} needs="delete" kind="quiet" aria-label="Remove ${c.consumer} of ${c.topic}"
      onClick=${() => open({ kind: "remove", of: c })}>Remove<//>` },
];

const routerColumns = (open) => [
  { title: "Router", of: (r) => html`
    ${r.router}${r.stopped_by && html` <${Badge} kind="bad">stopped: ${r.stopped_by}<//>`}` },
  { title: "From", of: (r) => topicLink(r.source) },
  { title: "To", of: (r) => topicLink(r.dest) },
  { title: "Filter", of: (r) => (r.filter ? r.filter.slice(1).join(" ") : "all") },
  { title: "Guarantee", of: (r) => r.guarantee.replaceAll("_", " ") },
  { title: "Forwarded", number: true, of: (r) => count(r.forwarded_total) },
  { title: "Lag, records", number: true, of: (r) => count(r.lag) },
  { title: html`<span class="hidden">Actions</span>`, kind: "actions", of: (r) => html`
    <${Act} needs="delete" kind="quiet" aria-label="Remove ${r.router}"
      onClick=${() => open({ kind: "remove", of: r })}>Remove<//>` },
];

function SeekForm({ of: consumer, onClose }) {
  const [to, setTo] = useState("start");
  const [seq, setSeq] = useState(String(consumer.cursor));
  const [at, setAt] = useState("");
  const action = useAction();
  const body = () => {
    if (to === "seq") return { seq: Number(seq) };
    return to === "time" ? { ts: new Date(at).getTime() } : { to };
  };
  const ready = to !== "time" || at !== "";
  return html`
    <${Form} title="Seek ${consumer.consumer}" onClose=${onClose} action=${action} submit="Set cursor" ready=${ready}
      onSubmit=${() => post(consumerPath(consumer, "/seek"), body())}>
      <p>The cursor is ${count(consumer.cursor)}; after it ${consumer.topic} has ${count(consumer.lag)} records.
        Going back has the consumer read records again.</p>
      <${Field} label="To" options=${["start", "end", "seq", "time"]} value=${to} onInput=${setTo} />
      ${to === "seq" && html`<${Field} label="After seq" type="number" min="0" value=${seq} onInput=${setSeq} />`}
      ${to === "time" && html`<${Field} label="Time" type="datetime-local" step="1" value=${at} onInput=${setAt} />`}
    <//>`;
}

function ConsumerForm({ onClose }) {
  const [asked, setAsked] = useState({ topic: "", consumer: "", mode: "at_least_once", start: "start" });
  const action = useAction();
  const set = (field) => (value) => setAsked({ ...asked, [field]: value });
  const { mode, start } = asked;
  return html`
    <${Form} title="Add a consumer" onClose=${onClose} action=${action} submit="Add"
      ready=${asked.topic !== "" && asked.consumer !== ""}
      onSubmit=${() => call("PUT", consumerPath(asked), { mode, start })}>
      <${Field} label="Topic" value=${asked.topic} onInput=${set("topic")} />
      <${Field} label="Name" value=${asked.consumer} onInput=${set("consumer")} />
      <${Field} label="Mode" options=${["at_least_once", "at_most_once"]} value=${mode} onInput=${set("mode")} />
      <${Field} label="Begins at" options=${["start", "end"]} value=${start} onInput=${set("start")} />
    <//>`;
}

function RouterForm({ onClose }) {
  const [asked, setAsked] = useState({ name: "", source: "", dest: "", tag: "", guarantee: "at_least_once" });
  const action = useAction();
  const set = (field) => (value) => setAsked({ ...asked, [field]: value });
  const { name, source, dest, tag, guarantee } = asked;
  const save = () => call("PUT", routerPath(name), { source, dest, guarantee, ...(tag && { filter: tag }) });
  return html`
    <${Form} title="Add a router" onClose=${onClose} action=${action} submit="Add" onSubmit=${save}
      ready=${name !== "" && source !== "" && dest !== ""}>
      <${Field} label="Name" value=${name} onInput=${set("name")} />
      <${Field} label="From topic" value=${source} onInput=${set("source")} />
      <${Field} label="To topic" value=${dest} onInput=${set("dest")} />
      <${Field} label="Only tag" value=${tag} onInput=${set("tag")} hint="or a prefix and *" />
      <${Field} label="Guarantee" options=${["at_least_once", "exactly_once"]} value=${guarantee}
        onInput=${set("guarantee")} />
    <//>`;
}

function RemoveForm({ of, onClose }) {
  const action = useAction();
  const name = of.router ?? of.consumer;
  const remove = () => call("DELETE", of.router ? routerPath(of.router) : consumerPath(of));
  return html`
    <${Form} title="Remove ${name}" onClose=${onClose} onSubmit=${remove} action=${action} submit="Remove" danger>
      <p>${of.router
        ? `What it copied from ${of.source} to ${of.dest} stays; new records are not copied any more.`
        : `The cursor of ${name} on ${of.topic} is deleted: a new consumer of that name begins anew.`}</p>
    <//>`;
}

const DIALOGS = { consumer: ConsumerForm, router: RouterForm, seek: SeekForm, remove: RemoveForm };
