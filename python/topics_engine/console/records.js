// A table of records and gaps, and the dialog with one record.

import { clock, count, time } from "./format.js";
import { Payload, preview } from "./json.js";
import { Dialog, Facts } from "./parts.js";
import { html, useState, useCallback } from "./vendor-preact.js";

/** Rows of a read's or a stream's answer: a gap before the records that came with it. */
export const gapRow = (gap) => ({ gap, key: `gap-${gap.gap_from}-${gap.gap_to}` });
export const recordRow = (record) => ({ record, key: record.$seq });

export function Records({ rows, label, empty }) {
  const [opened, setOpened] = useState(null);
  const open = useCallback((event) => {
    const { seq } = event.target.closest("[data-seq]")?.dataset ?? {};
    if (seq) setOpened(event.currentTarget.rowsBySeq.get(Number(seq)));
  }, []);
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  // One listener for all rows: thousands of them come and go each second.
  const index = (element) => {
    if (element) element.rowsBySeq = new Map(rows.filter((r) => r.record).map((r) => [r.record.$seq, r.record]));
  };
  return html`
    <div class="scroll records" tabindex="0" role="region" aria-label=${label}>
      <table>
        <caption class="hidden">${label}</caption>
        <thead><tr>
          <th scope="col" class="number">Seq</th><th scope="col">Time</th><th scope="col">Tag</th>
          <th scope="col">Node</th><th scope="col">Data</th>
        </tr></thead>
        <tbody ref=${index} onClick=${open} aria-live="off">
          ${rows.map((row) => (row.gap ? html`<${GapLine} key=${row.key} gap=${row.gap} />`
            : html`<${RecordLine} key=${row.key} record=${row.record} />`))}
        </tbody>
      </table>
    </div>
    ${opened && html`<${RecordDialog} record=${opened} onClose=${() => setOpened(null)} />`}`;
}

/** Whether the limits of the topic took the records, as they were set to. */
const isRetention = ({ reason }) => ["cap", "ttl", "mixed"].includes(reason);

const RecordLine = ({ record }) => html`
  <tr>
    <td class="number"><button type="button" class="link" data-seq=${record.$seq}
      aria-label="Record ${record.$seq}">${record.$seq}</button></td>
    <td class="clock">${clock(record.$ts)}</td>
    <td class="tag">${record.$tag ?? ""}</td>
    <td>${record.$node ?? ""}</td>
    <td class="data">${preview(record)}</td>
  </tr>`;

const GapLine = ({ gap }) => html`
  <tr class="gap"><td colspan="5">
    Gap: seqs ${count(gap.gap_from)} to ${count(gap.gap_to)} ${isRetention(gap) ? "were evicted (" : "are lost ("}
    ${gap.reason})</td></tr>`;

export const RecordDialog = ({ record, onClose }) => html`
  <${Dialog} wide title="Record ${record.$seq}" onClose=${onClose}>
    <${Facts} of=${[
      ["time", time(record.$ts)],
      ["tag", record.$tag ?? "none"],
      ["node", record.$node ?? "none"],
      ...Object.entries(record.meta ?? {}).map(([name, value]) => [`meta ${name}`, value]),
    ]} />
    <${Payload} record=${record} />
  <//>`;
