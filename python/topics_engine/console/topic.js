// One topic: its state, its records live or from a place, its segments, and an append.

import { get, parse, post, topicPath } from "./api.js";
import { Browser } from "./browse.js";
import { bytes, count, rate, time, withUnit } from "./format.js";
import { useAction, usePoll, useRates } from "./hooks.js";
import { Act, Counters, Facts, Field, Form, Loading, Stale } from "./parts.js";
import { Segments } from "./segments.js";
import { Tail } from "./tail.js";
import { ConfigForm } from "./topic-config.js";
import { ClassBadge, DropForm, evicted, gone } from "./topics.js";
import { html, useState } from "./vendor-preact.js";

const TABS = { live: "Live tail", browse: "Browse", segments: "Segments and gaps", config: "Config" };

export function TopicView({ name }) {
  const loaded = usePoll((signal) => get(`${topicPath(name)}?touch=false`, signal), [name]);
  const rates = useRates(loaded.data && { [name]: loaded.data.head_seq }, loaded.at);
  const [tab, setTab] = useState("live");
  const [dialog, setDialog] = useState(null);
  const topic = loaded.data;
  const heading = html`<p class="crumbs"><a href="#/topics">Topics</a></p><h1>${name}</h1>`;
  if (!topic) return html`${heading}<${Loading} of=${loaded} />`;
  const close = () => {
    setDialog(null);
    loaded.reload();
  };
  const closeDropped = () => {
    setDialog(null);
    // The topic may still be there: the dialog closes without a drop, too.
    get(`${topicPath(name)}?touch=false`).catch(() => (location.hash = "#/topics"));
  };
  return html`
    <div class="title">
      <div>${heading}</div>
      <${ClassBadge} of=${topic.config.durability} />
      ${topic.type === "queue" && html`<a href="#/queues/${encodeURIComponent(name)}">Open as a queue</a>`}
      <span class="actions">
        <${Act} needs="write" kind="primary" onClick=${() => setDialog("append")}>Append<//>
        <${Act} needs="admin" onClick=${() => setDialog("edit")}>Edit config<//>
        <${Act} needs="delete" onClick=${() => setDialog("drop")}>Drop<//>
      </span>
    </div>
    <${Stale} of=${loaded} />
    <${Counters} of=${[
      ["records", count(topic.count)],
      ["payload", bytes(topic.bytes)],
      ["written", rate(rates(name).at(-1))],
      ["first seq", count(topic.earliest_seq)],
      ["head", count(topic.head_seq)],
      ["lost by limits", count(evicted(topic))],
      ["lost in gaps", count(gone(topic)), gone(topic) ? "bad" : ""],
    ]} />
    <${Tabs} tabs=${TABS} current=${tab} onSelect=${setTab} />
    <section role="tabpanel" id="panel" aria-labelledby="tab-${tab}">
      ${tab === "live" && html`<${Tail} name=${name} />`}
      ${tab === "browse" && html`<${Browser} name=${name} topic=${topic} />`}
      ${tab === "segments" && html`<${Segments} name=${name} topic=${topic} />`}
      ${tab === "config" && html`<${Facts} of=${facts(topic)} />`}
    </section>
    ${dialog === "append" && html`<${AppendForm} name=${name} onClose=${close} />`}
    ${dialog === "edit" && html`<${ConfigForm} topic=${topic} onClose=${close} />`}
    ${dialog === "drop" && html`<${DropForm} topic=${topic} onClose=${closeDropped} />`}`;
}

const facts = (topic) => [
  ["topic id", topic.topic_id],
  ["last write", time(topic.last_write_ts)],
  ["last read", time(topic.last_read_ts)],
  ["effective priority", topic.effective_priority],
  ...Object.entries(topic.config).map(([name, value]) => [name, withUnit(name, value) || "none"]),
];

/** Tabs by the ARIA pattern: one tab stop, arrows move. */
export function Tabs({ tabs, current, onSelect }) {
  const names = Object.keys(tabs);
  const moved = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(current) + step + names.length) % names.length];
    onSelect(next);
    document.getElementById(`tab-${next}`).focus();
  };
  return html`
    <div role="tablist" class="tabs" onKeyDown=${moved}>
      ${names.map((name) => html`
        <button type="button" role="tab" id="tab-${name}" key=${name} aria-selected=${String(name === current)}
          aria-controls="panel" tabindex=${name === current ? 0 : -1} onClick=${() => onSelect(name)}>
          ${tabs[name]}</button>`)}
    </div>`;
}

function AppendForm({ name, onClose }) {
  const [data, setData] = useState("{}");
  const [tag, setTag] = useState("");
  const [node, setNode] = useState("");
  const action = useAction();
  const append = () => {
    const record = { data: parseTyped(data), ...(tag && { tag }), ...(node && { node }) };
    return post(topicPath(name), { records: [record], create: false });
  };
  return html`
    <${Form} title="Append to ${name}" onClose=${onClose} onSubmit=${append} action=${action} submit="Append record">
      <${Field} label="Data" hint="any JSON value" rows=${8} value=${data} onInput=${setData} />
      <${Field} label="Tag" value=${tag} onInput=${setTag} />
      <${Field} label="Node" hint="where the record comes from" value=${node} onInput=${setNode} />
    <//>`;
}

function parseTyped(text) {
  try {
    return parse(text);
  } catch (error) {
    throw new Error(`the data is not valid JSON: ${error.message}`);
  }
}

