// Creates a topic, or edits its config: fields from the server's OpenAPI document, and a diff.

import { call, get, topicPath } from "./api.js";
import { fromUnit, unitHint, withUnit } from "./format.js";
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
// Chosen when the topic is created.
const FIXED = ["type"];

let schema;

/** The fields of a config with their kinds, from the document that the server publishes. */
async function configSchema() {
  schema ??= (await get("v0/openapi.json")).components.schemas.Config.properties;
  return Object.entries(schema).filter(([name]) => !LEFT_OUT.includes(name));
}

/** The value of a field from what was typed; `undefined` if it is empty. A number that cannot be read stays text. */
function typed(field, text) {
  const kinds = [schema[field].type].flat();
  if (text === "") return kinds.includes("null") ? null : undefined;
  if (kinds.includes("integer")) return /^-\d+$/.test(text) ? Number(text) : (fromUnit(field, text) ?? text);
  return kinds.includes("boolean") ? text === "true" : text;
}

/** The fields to send; an error if the number of one cannot be read. */
function patch(changes) {
  for (const { field, to } of changes) {
    if (typeof to !== "string" || ![schema[field].type].flat().includes("integer")) continue;
    throw new Error(`${field}: ${to} is not a number${unitHint(field) ? ` with a unit, as in ${unitHint(field)}` : ""}`);
  }
  return Object.fromEntries(changes.map(({ field, to }) => [field, to]));
}

/** What a field means and accepts. */
function hintOf(field, kind, topic) {
  if (topic && FIXED.includes(field)) return `${kind.description}; it cannot be changed`;
  return unitHint(field) ? `${kind.description} (${unitHint(field)})` : kind.description;
}

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
    .map(([field, text]) => ({ field, from: before[field], to: typed(field, text) }))
    .filter(({ field, from, to }) => to !== undefined && withUnit(field, to) !== withUnit(field, from));
  const save = async () => call("PUT", topicPath(name), patch(changes));
  const isQueue = (values.type ?? before.type) === "queue";
  const visible = fields?.filter(([, kind]) => isQueue || !kind.description.startsWith("queue:"));
  return html`
    <${Form} wide title=${topic ? `Edit ${name}` : "Create a topic"} submit=${topic ? "Save changes" : "Create"}
      onClose=${onClose} onSubmit=${save} action=${action} ready=${topic ? changes.length > 0 : name !== ""}>
      ${!topic && html`<${Field} label="Name" value=${name} onInput=${setName} required
        hint="letters, digits and . _ : - ; the first is a letter or a digit" />`}
      ${visible ? html`<div class="columns">${visible.map(([field, kind]) => html`
          <${Field} key=${field} label=${field} hint=${hintOf(field, kind, topic)}
            options=${optionsOf(field, kind, topic)} disabled=${Boolean(topic) && FIXED.includes(field)}
            placeholder="default" value=${values[field] ?? withUnit(field, before[field])}
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
        <td><del>${withUnit(c.field, c.from) || "none"}</del></td>
        <td><ins>${withUnit(c.field, c.to) || "none"}</ins></td></tr>`)}</tbody>
    </table>`;
}
