// JSON values: a preview of one line, and a tree whose branches open.

import { stringify } from "./api.js";
import { html } from "./vendor-preact.js";

const PREVIEW = 160;
const ENTRIES = 100;

/** The payload of a record as one line of text. */
export function preview(record) {
  if ("data_b64" in record) return `binary, ${base64Bytes(record.data_b64)} bytes`;
  const text = stringify(record.data) ?? "null";
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

const base64Bytes = (text) => (text.length / 4) * 3 - (text.match(/=*$/)?.[0].length ?? 0);

/** The payload of a record as a tree. */
export const Payload = ({ record }) =>
  "data_b64" in record
    ? html`<p>Binary, ${base64Bytes(record.data_b64)} bytes, as base64:</p>
        <pre class="json" tabindex="0">${record.data_b64}</pre>`
    : html`<div class="json" role="group" aria-label="Payload"><${Tree} value=${record.data} open=${true} /></div>`;

/** A value; objects and arrays open and close. */
export function Tree({ name, value, open = false }) {
  const label = name === undefined ? "" : html`<span class="name">${name}</span>: `;
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return html`<div class="leaf">${label}<span class=${kind}>${stringify(value)}</span></div>`;
  }
  const entries = Object.entries(value);
  const [left, right] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return html`<div class="leaf">${label}${left}${right}</div>`;
  return html`
    <details open=${open}>
      <summary>${label}${left}<span class="size">${entries.length}</span>${right}</summary>
      <${Entries} of=${entries} />
    </details>`;
}

const Entries = ({ of }) => html`
  ${of.slice(0, ENTRIES).map(([name, value]) => html`<${Tree} key=${name} name=${name} value=${value} />`)}
  ${of.length > ENTRIES && html`<div class="leaf">… ${of.length - ENTRIES} more</div>`}`;
