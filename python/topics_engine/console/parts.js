// Components that several views use: tables, dialogs, fields, notices, sparklines.

import { clock } from "./format.js";
import { html, useContext, useEffect, useRef, createContext } from "./vendor-preact.js";

/** What the key may do: `{scopes, prefixes}`. */
export const Access = createContext({ scopes: [], prefixes: [] });

/** A function that says whether the key has all of these scopes. */
export function useMay() {
  const { scopes } = useContext(Access);
  return (...needed) => needed.every((scope) => scopes.includes(scope));
}

/** A button for a change. Without the scopes it is disabled, and says which scope is missing. */
export function Act({ needs, onClick, children, kind = "", disabled = false, ...rest }) {
  const { scopes } = useContext(Access);
  const missing = needs.split("+").filter((scope) => !scopes.includes(scope));
  const title = missing.length ? `this key lacks scope ${missing.join(" and ")}` : undefined;
  return html`<button type="button" class=${kind} title=${title} disabled=${disabled || missing.length > 0}
    onClick=${onClick} ...${rest}>${children}</button>`;
}

/** A table. Columns are `{name, title, of, number?, sort?}`; rows keep their elements by `id(row)`. */
export function Table({ label, columns, rows, id, empty = "Nothing here.", children }) {
  if (!rows.length && !children) return html`<p class="empty">${empty}</p>`;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${label}>
      <table>
        <caption class="hidden">${label}</caption>
        <thead>
          <tr>${columns.map((c) => html`<th scope="col" class=${c.number ? "number" : ""}>${c.title}</th>`)}</tr>
        </thead>
        <tbody>
          ${rows.map((row) => html`
            <tr key=${id(row)}>
              ${columns.map((c, n) => n
                ? html`<td class=${c.number ? "number" : (c.kind ?? "")}>${c.of(row)}</td>`
                : html`<th scope="row">${c.of(row)}</th>`)}
            </tr>`)}
        </tbody>
      </table>
    </div>`;
}

/** A modal dialog. The browser keeps the focus inside it, and returns it when the dialog closes. */
export function Dialog({ title, onClose, children, wide = false }) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  // The view removes the dialog, which closes it.
  const cancelled = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`
    <dialog ref=${element} class=${wide ? "wide" : ""} aria-label=${title} onCancel=${cancelled}>
      <header>
        <h2>${title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button>
      </header>
      ${children}
    </dialog>`;
}

/** A dialog that asks before a change. With `word`, that has to be typed first. */
export function Form({ title, onClose, onSubmit, action, submit = "Save", danger, ready = true, wide, children }) {
  const sent = async (event) => {
    event.preventDefault();
    if (ready && (await action.run(onSubmit))) onClose();
  };
  return html`
    <${Dialog} title=${title} onClose=${onClose} wide=${wide}>
      <form method="dialog" onSubmit=${sent}>
        ${children}
        <${Notice} error=${action.error} />
        <footer>
          <button type="button" onClick=${onClose}>Cancel</button>
          <button type="submit" class=${danger ? "danger" : "primary"} disabled=${action.busy || !ready}>
            ${submit}
          </button>
        </footer>
      </form>
    <//>`;
}

/** A labelled input; `hint` is read with it. */
export function Field({ label, hint, value, onInput, options, rows, ...rest }) {
  const id = `field-${label.replace(/\W+/g, "-").toLowerCase()}`;
  const shared = { id, value, "aria-describedby": hint ? `${id}-hint` : undefined,
    onInput: (event) => onInput(event.target.value), ...rest };
  let input = html`<input ...${shared} autocomplete="off" spellcheck=${false} />`;
  if (rows) input = html`<textarea ...${shared} rows=${rows} spellcheck=${false}></textarea>`;
  if (options) {
    input = html`<select ...${shared}>
      ${options.map((o) => html`<option value=${o} selected=${o === value}>${o || "–"}</option>`)}
    </select>`;
  }
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      ${input}
      ${hint && html`<p id=${`${id}-hint`} class="hint">${hint}</p>`}
    </div>`;
}

/** Why a request failed, with what its key lacks; nothing without an error. */
export function Notice({ error }) {
  if (!error) return null;
  return html`<p class="notice bad" role="alert"><b>${error.code ?? "error"}</b> ${error.message}</p>`;
}

/** Why the last poll of a view failed, and how old its figures are; nothing while polls succeed. */
export function Stale({ of: { error, at } }) {
  if (!error) return null;
  return html`<p class="notice bad" role="alert"><b>${error.code ?? "error"}</b> ${error.message}${" "}
    Figures on this page are of ${clock(at)}.</p>`;
}

/** The last rates as a small line; its numbers are in the cell beside it. */
export function Sparkline({ values }) {
  const width = 96;
  const height = 22;
  const most = Math.max(...values, 1e-9);
  const points = values.map((v, n) =>
    `${((n + 60 - values.length) / 59) * width},${height - 1 - (v / most) * (height - 3)}`);
  return html`<svg class="spark" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true">
    <polyline points=${points.join(" ")} /></svg>`;
}

/** A word with a colour that repeats what the word says. */
export const Badge = ({ kind = "", children }) => html`<span class="badge ${kind}">${children}</span>`;

/** Name and value pairs. */
export const Facts = ({ of }) => html`
  <dl class="facts">
    ${of.map(([name, value], n) => html`<div key=${n}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;

/** Counters that a screen reader announces when they change. */
export const Counters = ({ of }) => html`
  <dl class="counters" aria-live="polite" aria-atomic="false">
    ${of.map(([name, value, kind]) => html`
      <div key=${name} class=${kind ?? ""}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;

/** What a view shows until it has data. */
export const Loading = ({ of }) =>
  of.error ? html`<${Notice} error=${of.error} />` : html`<p class="empty">Loading …</p>`;

/** What the colours of a chart mean: `[class, title]`. */
export const Legend = ({ of }) => html`
  <p class="legend">
    ${of.map(([kind, title]) => html`<span key=${title}><i class=${kind} aria-hidden="true"></i>${title}</span>`)}
  </p>`;
