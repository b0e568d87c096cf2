// The live tail of a topic: an event stream, of which the newest records are shown.

import { events } from "./api.js";
import { count, rate } from "./format.js";
import { Badge, Field, Notice } from "./parts.js";
import { Records, gapRow, recordRow } from "./records.js";
import { html, useEffect, useRef, useState } from "./vendor-preact.js";

const SHOWN = 100;
const REPAINT_MS = 250;
const RETRY_MS = 2000;
const HEARTBEAT_MS = 5000;
/** A stream without a heartbeat for so long is over, whatever the network says. */
const SILENCE_MS = 3 * HEARTBEAT_MS;

/** What a tail has received; it is painted by a timer, not by each event. */
class Received {
  rows = [];
  total = 0;
  // Without what was there before the tail began.
  live = 0;
  isLive = false;
  isConnected = false;
  cursor = null;
  error = null;
  changed = false;

  take({ event, data }) {
    if (event === "open") {
      this.isConnected = true;
      this.error = null;
      this.changed = true;
    } else if (event === "record") {
      this.add(data.records.slice(-SHOWN).map(recordRow));
      this.total += data.records.length;
      if (this.isLive) this.live += data.records.length;
      this.cursor = data.to_seq;
    } else if (event === "caught-up") {
      this.isLive = true;
      this.cursor ??= data.head_seq;
    } else if (event === "tombstone") {
      this.add([gapRow(data)]);
      this.cursor = Math.max(this.cursor ?? 0, data.gap_to);
    } else if (event === "topic-deleted") {
      this.fail({ code: "topic_deleted", message: "the topic was deleted; its records are as you see them here" });
    } else if (event === "error") {
      this.fail({ code: data.error, message: data.message });
    }
  }

  /** The stream is over, for a reason or, where the server ended it, without one. */
  end(error) {
    this.isConnected = false;
    this.error = error ?? this.error;
    this.changed = true;
  }

  add(rows) {
    this.rows = [...this.rows, ...rows].slice(-SHOWN);
    this.changed = true;
  }

  fail(error) {
    this.error = error;
    this.changed = true;
  }
}

/** Follows the topic until the signal aborts it; begins again where it ended when the stream breaks. */
async function follow(name, tag, received, signal) {
  while (!signal.aborted) {
    const from = received.cursor === null ? { tail: 50 } : { from_seq: received.cursor };
    const query = new URLSearchParams({
      topic: name, limit: 1000, heartbeat_ms: HEARTBEAT_MS, ...from, ...(tag && { match: tag }),
    });
    const silence = new AbortController();
    const listen = () => setTimeout(() => silence.abort(new DOMException("", "TimeoutError")), SILENCE_MS);
    let timer = listen();
    try {
      for await (const event of events(`v0/watch?${query}`, AbortSignal.any([signal, silence.signal]))) {
        clearTimeout(timer);
        timer = listen();
        received.take(event);
      }
      received.end();
    } catch (error) {
      received.end(signal.aborted ? undefined : error);
      if (signal.aborted) return;
      // A refusal stays one; a broken connection does not.
      if (error.status >= 400 && error.status < 500 && error.status !== 429) return;
    } finally {
      clearTimeout(timer);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

/** Rows for the table. Where none of those before is left, rows keep their elements by position: changing the
 *  text of a hundred rows takes a fraction of the time of a hundred new ones. */
function newestFirst(rows, newestBefore) {
  const turned = [...rows].reverse();
  const isOverlapping = rows.some((row) => row.key === newestBefore);
  return isOverlapping ? turned : turned.map((row, n) => ({ ...row, key: `at-${n}` }));
}

/** Whether what is appended shows at this moment. */
function TailBadge({ paused, isConnected, error }) {
  if (paused) return html`<${Badge} kind="warn">paused<//>`;
  if (isConnected) return html`<${Badge} kind="live">live<//>`;
  return error ? html`<${Badge} kind="bad">not connected<//>` : html`<${Badge}>connecting<//>`;
}

export function Tail({ name }) {
  const [paused, setPaused] = useState(false);
  const [tag, setTag] = useState("");
  const [filter, setFilter] = useState("");
  const [shown, setShown] = useState({ rows: [], total: 0, perSecond: 0 });
  const received = useRef(new Received());

  useEffect(() => {
    received.current = new Received();
    received.current.changed = true;
  }, [name, filter]);

  useEffect(() => {
    if (paused) return undefined;
    const controller = new AbortController();
    follow(name, filter, received.current, controller.signal);
    return () => controller.abort();
  }, [name, filter, paused]);

  useEffect(() => {
    let before = 0;
    let perSecond = 0;
    const timer = setInterval(() => {
      const { rows, total, live, error, changed, isConnected } = received.current;
      const now = Math.max(0, live - before) / (REPAINT_MS / 1000);
      before = live;
      perSecond = perSecond ? 0.7 * perSecond + 0.3 * now : now;
      if (perSecond < 0.5) perSecond = 0;
      received.current.changed = false;
      const newest = rows.at(-1)?.key;
      if (changed) {
        setShown((s) => ({ rows: newestFirst(rows, s.newest), newest, total, error, isConnected, perSecond }));
      }
      else setShown((s) => (s.perSecond === perSecond ? s : { ...s, perSecond }));
    }, REPAINT_MS);
    return () => clearInterval(timer);
  }, [name, filter]);

  const apply = (event) => {
    event.preventDefault();
    setFilter(tag.trim());
  };
  return html`
    <form class="tools" onSubmit=${apply}>
      <button type="button" class="primary" data-shortcut="pause" aria-pressed=${String(paused)}
        onClick=${() => setPaused(!paused)}>${paused ? "Resume" : "Pause"}</button>
      <${Field} label="Only tag" value=${tag} onInput=${setTag} placeholder="eu:7 or eu:*" data-shortcut="search" />
      <button type="submit">Filter</button>
      <p class="status" id="tail-status"><${TailBadge} paused=${paused} ...${shown} />
        ${paused ? "Goes on where it stopped. " : ""}
        ${count(shown.total)} received, ${rate(Math.round(shown.perSecond))}; the newest ${SHOWN} are shown.</p>
    </form>
    <${Notice} error=${shown.error} />
    <${Records} rows=${shown.rows} label="Records, the newest first"
      empty=${filter ? `No record with tag ${filter} yet.` : "No records yet: what is appended shows here."} />`;
}
