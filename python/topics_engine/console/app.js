// The page: navigation by the address's hash, the key, shortcuts, and the view that is shown.

import { get, key, whenUnauthorized } from "./api.js";
import { ConsumersView } from "./consumers.js";
import { EngineView } from "./engine.js";
import { Access, Dialog, Facts, Field, Notice } from "./parts.js";
import { QueuesView, QueueView } from "./queues.js";
import { TopicView } from "./topic.js";
import { TopicsView } from "./topics.js";
import { html, render, useEffect, useState } from "./vendor-preact.js";

const VIEWS = [
  ["topics", "Topics", TopicsView, TopicView],
  ["queues", "Queues", QueuesView, QueueView],
  ["consumers", "Consumers and routers", ConsumersView],
  ["engine", "Engine", EngineView],
];

const SHORTCUTS = [
  ["/", "search"],
  ["1 – 4", "go to a view"],
  ["p", "pause or resume a live tail"],
  ["Esc", "close a dialog"],
  ["?", "this list"],
];

/** The view and the name in the address: `#/topics/orders`. */
function place() {
  const [, view, ...rest] = location.hash.split("/");
  let name = "";
  try {
    name = decodeURIComponent(rest.join("/"));
  } catch {
    // A malformed address has no name.
  }
  return { view: VIEWS.some(([known]) => known === view) ? view : "topics", name };
}

function usePlace() {
  const [at, setAt] = useState(place);
  useEffect(() => {
    const moved = () => {
      setAt(place());
      document.getElementById("main")?.focus();
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

/** Single keys, except while somebody types or a dialog is open. */
function useShortcuts(showHelp) {
  useEffect(() => {
    const pressed = (event) => {
      const typing = event.target.closest?.("input, textarea, select, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const button = (name) => document.querySelector(`[data-shortcut="${name}"]`);
      if (event.key === "/") button("search")?.focus();
      else if (event.key === "p") button("pause")?.click();
      else if (event.key === "?") showHelp();
      else if (VIEWS[event.key - 1]) location.hash = `#/${VIEWS[event.key - 1][0]}`;
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function KeyPrompt({ error, onKey }) {
  const [value, setValue] = useState("");
  const submit = (event) => {
    event.preventDefault();
    onKey(value.trim());
  };
  return html`
    <main id="main" class="gate" tabindex="-1">
      <form onSubmit=${submit}>
        <h1>Topics console</h1>
        <p>This server needs an API key. The browser keeps it until you close this tab.</p>
        <${Field} label="API key" type="password" value=${value} onInput=${setValue} required autofocus />
        <${Notice} error=${error} />
        <button type="submit" class="primary">Open</button>
      </form>
    </main>`;
}

function Help({ onClose }) {
  return html`
    <${Dialog} title="Keyboard" onClose=${onClose}>
      <${Facts} of=${SHORTCUTS.map(([keys, what]) => [html`<kbd>${keys}</kbd>`, what])} />
    <//>`;
}

function Header({ view, access, onHelp, onLogout }) {
  const limits = access.prefixes.length ? `, names ${access.prefixes.map((p) => `${p}*`).join(", ")}` : "";
  return html`
    <header class="top">
      <a class="skip" href="#main" onClick=${(event) => {
        event.preventDefault();
        document.getElementById("main").focus();
      }}>Skip to content</a>
      <span class="brand">Topics</span>
      <nav aria-label="Views">
        ${VIEWS.map(([name, title]) => html`
          <a href="#/${name}" aria-current=${name === view ? "page" : undefined}>${title}</a>`)}
      </nav>
      <span class="who">${access.scopes.length < 4 ? `${access.scopes.join(", ")}${limits}` : limits.slice(2)}</span>
      <button type="button" class="quiet" onClick=${onHelp} aria-label="Keyboard shortcuts">?</button>
      ${key.get() && html`<button type="button" class="quiet" onClick=${onLogout}>Forget key</button>`}
    </header>`;
}

function App() {
  const { view, name } = usePlace();
  const [access, setAccess] = useState(null);
  const [asking, setAsking] = useState(false);
  const [error, setError] = useState(null);
  const [help, setHelp] = useState(false);
  useShortcuts(() => setHelp(true));

  const enter = async () => {
    try {
      setAccess(await get("v0/key"));
      setAsking(false);
      setError(null);
    } catch (failure) {
      setAccess(null);
      setError(failure.status === 401 && !key.get() ? null : failure);
      setAsking(failure.status === 401 || failure.status === 403);
    }
  };
  useEffect(() => {
    whenUnauthorized(() => {
      setAccess(null);
      setAsking(true);
    });
    enter();
  }, []);
  const change = (value) => {
    key.set(value);
    enter();
  };

  if (asking) return html`<${KeyPrompt} error=${error} onKey=${change} />`;
  if (!access) {
    const again = html`<${Notice} error=${error} /><button type="button" onClick=${enter}>Try again</button>`;
    return html`<main id="main" class="gate">${error ? again : "Loading …"}</main>`;
  }
  const [, title, List, Single] = VIEWS.find(([known]) => known === view);
  return html`
    <${Access.Provider} value=${access}>
      <${Header} view=${view} access=${access} onHelp=${() => setHelp(true)} onLogout=${() => change("")} />
      <main id="main" tabindex="-1" aria-label=${title}>
        ${name && Single ? html`<${Single} key=${`${view}/${name}`} name=${name} />` : html`<${List} key=${view} />`}
      </main>
      ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
    <//>`;
}

render(html`<${App} />`, document.getElementById("app"));
