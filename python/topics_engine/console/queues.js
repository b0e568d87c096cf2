// Queues: a list, and one queue as a board of its jobs by state.

import { call, get, post, topicPath } from "./api.js";
import { count, duration, rate, time } from "./format.js";
import { useAction, usePoll, useRates } from "./hooks.js";
import { Payload, preview } from "./json.js";
import { Act, Badge, Counters, Dialog, Facts, Field, Form, Loading, Notice, Stale, Table } from "./parts.js";
import { Pager, loadTopics, topicLink } from "./topics.js";
import { html, useState } from "./vendor-preact.js";

const STATES = { ready: "Ready", leased: "Leased", delayed: "Delayed", dead: "Dead" };
const SHOWN = 25;
const alarm = (queue, state) => (state === "dead" && queue.dead ? "bad" : "");
const countOf = (queue, state) => queue[state === "leased" ? "in_flight" : state];

export function QueuesView() {
  const [prefix, setPrefix] = useState("");
  const [cursors, setCursors] = useState([]);
  const cursor = cursors.at(-1);
  const loaded = usePoll((signal) => loadTopics({ prefix, cursor }, signal), [prefix, cursor]);
  if (!loaded.data) return html`<h1>Queues</h1><${Loading} of=${loaded} />`;
  const queues = loaded.data.topics.filter((t) => t.queue);
  const sum = (state) => count(queues.reduce((total, q) => total + countOf(q.queue, state), 0));
  const search = (value) => {
    setCursors([]);
    setPrefix(value);
  };
  return html`
    <div class="title"><h1>Queues</h1></div>
    <${Stale} of=${loaded} />
    <${Counters} of=${Object.entries(STATES).map(([state, title]) => [title.toLowerCase(), sum(state)])} />
    <search class="tools">
      <${Field} label="Name begins with" type="search" value=${prefix} onInput=${search} data-shortcut="search"
        placeholder="press / to search" />
      <${Pager} cursors=${cursors} next=${loaded.data.next} onMove=${setCursors} />
    </search>
    <${Table} label="Queues" rows=${queues} id=${(q) => q.topic}
      empty=${loaded.data.next ? "No queue among the topics of this page." : "There are no queues."} columns=${[
        { title: "Queue", of: (q) => html`
          ${topicLink(q.topic, "queues")}${q.config.paused && html` <${Badge} kind="warn">paused<//>`}` },
        ...Object.entries(STATES).map(([state, title]) => ({
          title, number: true,
          of: (q) => html`<span class=${alarm(q.queue, state)}>${count(countOf(q.queue, state))}</span>`,
        })),
        { title: "Dead letters to", of: (q) => (q.config.dead_letter ? topicLink(q.config.dead_letter) : "stay here") },
        { title: "Max deliveries", number: true, of: (q) => q.config.max_deliveries || "no limit" },
        { title: "Lease", number: true, of: (q) => duration(q.config.lease_ms) },
      ]} />`;
}

async function loadQueue(name, signal) {
  const [topic, jobs] = await Promise.all([
    get(`${topicPath(name)}?touch=false`, signal),
    get(topicPath(name, `jobs?max=${SHOWN}`), signal),
  ]);
  return { topic, jobs: jobs.jobs };
}

export function QueueView({ name }) {
  const loaded = usePoll((signal) => loadQueue(name, signal), [name]);
  const [opened, setOpened] = useState(null);
  const [redriving, setRedriving] = useState(false);
  const action = useAction();
  const topic = loaded.data?.topic;
  const rates = useRates(topic && { [name]: topic.head_seq }, loaded.at);
  const heading = html`<p class="crumbs"><a href="#/queues">Queues</a></p><h1>${name}</h1>`;
  if (!topic) return html`${heading}<${Loading} of=${loaded} />`;
  const run = (work) => action.run(work).then(loaded.reload);
  const pause = () => run(() => call("PUT", topicPath(name), { paused: !topic.config.paused }));
  const close = () => {
    setOpened(null);
    setRedriving(false);
    loaded.reload();
  };
  const { queue } = topic;
  return html`
    <div class="title">
      <div>${heading}</div>
      ${topic.config.paused && html`<${Badge} kind="warn">paused<//>`}
      <a href="#/topics/${encodeURIComponent(name)}">Open as a topic</a>
      <span class="actions">
        <${Act} needs="admin" onClick=${pause}>${topic.config.paused ? "Resume claims" : "Pause claims"}<//>
        <${Act} needs="admin" onClick=${() => setRedriving(true)}>Redrive<//>
      </span>
    </div>
    <${Notice} error=${action.error} />
    <${Stale} of=${loaded} />
    <${Counters} of=${[
      ...Object.entries(STATES).map(([state, title]) =>
        [title.toLowerCase(), count(countOf(queue, state)), alarm(queue, state)]),
      ["dead-lettered", count(queue.dead_lettered)],
      ["written", rate(rates(name).at(-1))],
    ]} />
    <div class="board">
      ${Object.entries(STATES).map(([state, title]) => html`
        <section key=${state} aria-labelledby="board-${state}">
          <h2 id="board-${state}">${title} <span class="size">${count(countOf(queue, state))}</span></h2>
          <${JobTable} state=${state} title=${title} onOpen=${setOpened}
            jobs=${loaded.data.jobs.filter((j) => j.state === state)} />
        </section>`)}
    </div>
    ${opened && html`<${JobDialog} queue=${name} job=${opened} action=${action} onClose=${close} />`}
    ${redriving && html`<${RedriveForm} name=${name} onClose=${close} />`}`;
}

const WHEN = {
  ready: ["Group", (job) => job.group ?? ""],
  leased: ["Holder", (job) => job.node],
  delayed: ["Ready in", (job) => duration(Math.max(0, job.visible_at - Date.now()))],
};

function JobTable({ state, title, jobs, onOpen }) {
  const [heading, of] = WHEN[state] ?? [];
  const hasSecond = of && (state !== "ready" || jobs.some((job) => job.group));
  return html`<${Table} label="${title} jobs" rows=${jobs} id=${(j) => j.$seq} empty="none" columns=${[
    { title: "Job", of: (j) => html`
      <button type="button" class="link" aria-label="Job ${j.$seq}" onClick=${() => onOpen(j)}>${j.$seq}</button>` },
    { title: html`<abbr title="deliveries">Tries</abbr>`, number: true, of: (j) => j.deliveries },
    ...(hasSecond ? [{ title: heading, kind: "data", of }] : []),
    { title: "Data", kind: "data", of: (j) => html`${preview(j)}${j.error && html`<p class="error">${j.error}</p>`}` },
  ]} />`;
}

function JobDialog({ queue, job, action, onClose }) {
  const seqs = [job.$seq];
  const change = (verb, body = {}) => () =>
    action.run(() => post(topicPath(queue, verb), { seqs, ...body })).then(onClose);
  return html`
    <${Dialog} wide title="Job ${job.$seq}" onClose=${onClose}>
      <${Facts} of=${[
        ["state", html`<${Badge} kind=${job.state === "dead" ? "bad" : ""}>${job.state}<//>`],
        ["deliveries", job.deliveries],
        ["holder", job.node ?? "none"],
        ["error", job.error ?? "none"],
        ["written", time(job.$ts)],
        job.deadline && ["lease ends", `${time(job.deadline)}, in ${duration(Math.max(0, job.deadline - Date.now()))}`],
        job.visible_at && ["ready at", time(job.visible_at)],
        ["tag", job.$tag ?? "none"],
        ["lane", job.lane],
        job.group && ["group", job.group],
      ].filter(Boolean)} />
      <${Payload} record=${job} />
      <footer>
        <${Act} needs="write" disabled=${job.state !== "delayed"} onClick=${change("promote")}>Make ready now<//>
        <${Act} needs="admin" disabled=${job.state !== "dead"} onClick=${change("redrive")}>Retry<//>
        <${Act} needs="delete" kind="danger" onClick=${change("remove", { force: job.state === "leased" })}>Remove<//>
      </footer>
    <//>`;
}

function RedriveForm({ name, onClose }) {
  const [asked, setAsked] = useState({ to: "", tag: "", limit: "" });
  const [counted, setCounted] = useState(null);
  const action = useAction();
  const body = (dryRun) => ({
    ...(asked.to && { to: asked.to }),
    ...(asked.tag && { match: asked.tag }),
    ...(asked.limit && { limit: Number(asked.limit) }),
    dry_run: dryRun,
  });
  const send = (dryRun) => post(topicPath(name, "redrive"), body(dryRun));
  const tryOut = () => action.run(async () => setCounted((await send(true)).moved));
  const set = (field) => (value) => {
    setCounted(null);
    setAsked({ ...asked, [field]: value });
  };
  return html`
    <${Form} title="Redrive ${name}" onClose=${onClose} onSubmit=${() => send(false)} action=${action} submit="Redrive">
      <p>Brings dead jobs back to ready, or moves the dead letters of this topic to where they came from.</p>
      <${Field} label="To" hint="another queue; where each came from unless given" value=${asked.to}
        onInput=${set("to")} />
      <${Field} label="Only tag" value=${asked.tag} onInput=${set("tag")} />
      <${Field} label="At most" type="number" min="1" value=${asked.limit} onInput=${set("limit")} />
      <p><button type="button" onClick=${tryOut}>Count first</button>
        <span role="status">${counted !== null ? ` ${count(counted)} jobs would move.` : ""}</span></p>
    <//>`;
}
