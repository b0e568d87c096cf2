// Records from a place on: by seq, time, tag or text. A search looks at a part of the topic at a time.

import { post, stringify, topicPath } from "./api.js";
import { count } from "./format.js";
import { useAction } from "./hooks.js";
import { Field, Notice } from "./parts.js";
import { Records, gapRow, recordRow } from "./records.js";
import { html, useEffect, useRef, useState } from "./vendor-preact.js";

const PAGE = 100;
const BUDGET = 20_000;
const BATCH = 1000;

/** Reads on from `search.cursor` until a page is full, the head is reached or the budget is spent. */
async function advance(name, search, onProgress, signal) {
  const { tag, text } = search;
  const rows = [];
  const from = search.cursor;
  let { cursor } = search;
  for (;;) {
    const limit = text ? BATCH : PAGE - rows.length;
    const page = await post(topicPath(name, "diff"), { from_seq: cursor, limit, ...(tag && { match: tag }) }, signal);
    if (page.tombstone) rows.push(gapRow(page.tombstone));
    let next = page.next_from_seq;
    for (const record of page.records) {
      if (text && !(stringify(record.data) ?? record.data_b64).includes(text)) continue;
      rows.push(recordRow(record));
      if (rows.length === PAGE) {
        next = text ? record.$seq : next;
        break;
      }
    }
    cursor = next;
    onProgress({ cursor, found: rows.length, head: page.head_seq });
    const done = cursor >= page.head_seq;
    if (done || rows.length >= PAGE || cursor - from >= BUDGET) return { rows, cursor, done, head: page.head_seq };
  }
}

export function Browser({ name, topic }) {
  const [asked, setAsked] = useState({ seq: "", at: "", tag: "", text: "" });
  const [search, setSearch] = useState({ start: 0, cursor: Math.max(0, topic.earliest_seq - 1), tag: "", text: "" });
  const [shown, setShown] = useState({ rows: [] });
  const [progress, setProgress] = useState(null);
  const action = useAction();
  const controller = useRef(null);

  const load = (from, before) => {
    controller.current?.abort();
    const mine = (controller.current = new AbortController());
    return action.run(async () => {
      try {
        const found = await advance(name, from, setProgress, mine.signal);
        setShown({ rows: [...before, ...found.rows], done: found.done });
        setSearch({ ...from, cursor: found.cursor });
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    });
  };
  useEffect(() => {
    load(search, []);
    return () => controller.current.abort();
  }, []);

  const go = async (event) => {
    event.preventDefault();
    let cursor = asked.seq ? Math.max(0, Number(asked.seq) - 1) : Math.max(0, topic.earliest_seq - 1);
    const begun = await action.run(async () => {
      if (!asked.at) return;
      const ts = new Date(asked.at).getTime();
      cursor = Math.max(cursor, (await post(topicPath(name, "seek"), { ts })).seq);
    });
    if (begun) await load({ start: cursor, cursor, tag: asked.tag.trim(), text: asked.text }, []);
  };
  const set = (field) => (value) => setAsked({ ...asked, [field]: value });
  const looked = (progress?.cursor ?? search.cursor) - search.start;
  const whole = Math.max(0, (progress?.head ?? topic.head_seq) - search.start);
  return html`
    <form class="tools" onSubmit=${go}>
      <${Field} label="From seq" type="number" min="1" value=${asked.seq} onInput=${set("seq")} />
      <${Field} label="From time" type="datetime-local" step="1" value=${asked.at} onInput=${set("at")} />
      <${Field} label="Only tag" value=${asked.tag} onInput=${set("tag")} placeholder="eu:7 or eu:*"
        data-shortcut="search" />
      <${Field} label="Containing text" value=${asked.text} onInput=${set("text")} />
      <button type="submit" class="primary">Go</button>
    </form>
    <p class="status" role="status">
      <progress aria-label="Part of the topic looked at" max=${Math.max(1, whole)}
        value=${Math.min(looked, whole)}></progress>
      ${count(looked)} of ${count(whole)} looked at, ${count(shown.rows.length)} shown.
      ${" "}<button type="button" disabled=${action.busy || shown.done} onClick=${() => load(search, shown.rows)}>
        ${shown.done ? "At the head" : "Continue"}</button>
    </p>
    <${Notice} error=${action.error} />
    <${Records} rows=${shown.rows} label="Records, the oldest first"
      empty=${action.busy ? "Reading …" : "No record here matches."} />`;
}
