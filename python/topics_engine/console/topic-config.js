// Creates a topic, or edits its config: fields from the server's OpenAPI document, and a diff.

import { call, get, topicPath } from "./api.js";
import { useAction } from "./hooks.js";
import { Field, Form, Loading } from "./parts.js";
import { html, useEffect, useState } from "./vendor-preact.js";

const CHOICES = {
  type: ["log", "queue"],
  durability: ["ephemeral", "memory", "disk", "fsync"],
  discard: ["old", "reject"],
};
// `durability` says the same.
const LEFT_OUT = ["durable"];

let schema;

/** The fields of a config with their kinds, from the document that the server publishes. */
async function configSchema() {
  schema ??= (await get("v0/openapi.json")).components.schemas.Config.properties;
  return Object.entries(schema).filter(([name]) => !LEFT_OUT.includes(name));
}

/** The value of a field from what was typed; `undefined` if it is empty. */
function typed(kind, text) {
  const kinds = [kind.type].flat();
  if (text === "") return kinds.includes("null") ? null : undefined;
  if (kinds.includes("integer")) return /^-?\d+$/.test(text) ? Number(text) : text;
  return kinds.includes("boolean") ? text === "true" : text;
}

const shown = (value) => (value === null || value === undefined ? "" : String(value));

export function ConfigForm({ topic, onClose }) {
  const [name, setName] = useState(topic?.topic ?? "");
  const [fields, setFields] = useState();
  const [values, setValues] = useState({});
  const [failure, setFailure] = useState();
  const action = useAction();
  useEffect(() => {
    configSchema().then(setFields, setFailure);
  }, []);
  const before = topic?.config ?? {};
  const changes = Object.entries(values)
    .map(([field, text]) => ({ field, from: before[field], to: typed(schema[field], text) }))
    .filter(({ from, to }) => to !== undefined && shown(to) !== shown(from));
  const save = () => call("PUT", topicPath(name), Object.fromEntries(changes.map((c) => [c.field, c.to])));
  const isQueue = (values.type ?? before.type) === "queue";
  const visible = fields?.filter(([, kind]) => isQueue || !kind.description.startsWith("queue:"));
  return html`
    <${Form} wide title=${topic ? `Edit ${name}` : "Create a topic"} submit=${topic ? "Save changes" : "Create"}
      onClose=${onClose} onSubmit=${save} action=${action} ready=${topic ? changes.length > 0 : name !== ""}>
      ${!topic && html`<${Field} label="Name" value=${name} onInput=${setName} required
        hint="letters, digits and . _ : - ; the first is a letter or a digit" />`}
      ${visible ? html`<div class="columns">${visible.map(([field, kind]) => html`
          <${Field} key=${field} label=${field} hint=${kind.description} options=${optionsOf(field, kind, topic)}
            placeholder="default" value=${values[field] ?? shown(before[field])}
            onInput=${(value) => setValues({ ...values, [field]: value })} />`)}</div>`
        : html`<${Loading} of=${{ error: failure }} />`}
      ${topic && html`<${Diff} changes=${changes} />`}
    <//>`;
}

function optionsOf(field, kind, topic) {
  const given = CHOICES[field] ?? (kind.type === "boolean" ? ["true", "false"] : undefined);
  return given && (topic ? given : ["", ...given]);
}

function Diff({ changes }) {
  if (!changes.length) return html`<p class="empty">Nothing is changed yet.</p>`;
  return html`
    <table class="diff">
      <caption>Changes</caption>
      <thead><tr><th scope="col">Field</th><th scope="col">Now</th><th scope="col">After</th></tr></thead>
      <tbody>${changes.map((c) => html`<tr key=${c.field}><th scope="row">${c.field}</th>
        <td><del>${shown(c.from) || "none"}</del></td><td><ins>${shown(c.to) || "none"}</ins></td></tr>`)}</tbody>
    </table>`;
}
