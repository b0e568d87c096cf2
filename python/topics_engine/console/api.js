// The HTTP API of the server, and the key that requests carry.

/** The server's address: this file lies at `<root>/console/api.js`, wherever the server is mounted. */
const ROOT = new URL("..", import.meta.url);
const KEY = "topics-key";

/** An error answer, or no answer: then `status` is 0. */
export class ApiError extends Error {
  constructor(status, code, message, detail) {
    super(message);
    this.status = status;
    this.code = code;
    this.detail = detail ?? {};
  }
}

/** The API key, which lives as long as the tab. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** Called when the server refuses the key, or asks for one. */
let onUnauthorized = () => {};
export const whenUnauthorized = (callback) => (onUnauthorized = callback);

const headers = (more) => ({ ...(key.get() && { authorization: `Bearer ${key.get()}` }), ...more });

/** Awaits a part of an exchange. If it fails, or its time is over, the server cannot be reached. */
async function reached(part) {
  try {
    return await part;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "the server does not answer: is it running?");
  }
}

async function send(path, options) {
  const response = await reached(fetch(new URL(path, ROOT), { cache: "no-store", ...options }));
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  if (response.status === 401) onUnauthorized();
  throw new ApiError(response.status, error?.code, error?.message ?? `status ${response.status}`, error?.detail);
}

/** Sends a request with a JSON body, if there is one, and returns the JSON answer. */
export async function call(method, path, body, signal) {
  const json = body === undefined ? {} : { "content-type": "application/json" };
  const response = await send(path, {
    method,
    signal,
    headers: headers({ accept: "application/json", ...json }),
    body: body === undefined ? undefined : stringify(body),
  });
  return parse(await reached(response.text()));
}

export const get = (path, signal) => call("GET", path, undefined, signal);
export const post = (path, body, signal) => call("POST", path, body, signal);

/** Returns an answer as text. */
export async function text(path, accept, signal) {
  const response = await send(path, { signal, headers: headers({ accept }) });
  return reached(response.text());
}

/** The path of a topic, or of something below it. */
export const topicPath = (name, below = "") =>
  `v0/topics/${encodeURIComponent(name)}${below && `/${below}`}`;

/** Follows an event stream: yields `{event, data}` until the signal aborts it or the server ends it. The first
 *  event is `open`, when the server has answered; a heartbeat is the event `heartbeat`. */
export async function* events(path, signal) {
  const response = await send(path, { signal, headers: headers({ accept: "text/event-stream" }) });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  yield { event: "open" };
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const lines = frame.split("\n");
      const event = lines.find((line) => line.startsWith("event: "))?.slice(7);
      const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
      yield event ? { event, data: parse(data) } : { event: "heartbeat" };
    }
  }
}

/** Parses JSON. Integers that a double cannot hold become BigInt, where the browser shows their text. */
export function parse(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && /^-?\d{16,}$/.test(context?.source ?? "") && !Number.isSafeInteger(value)
      ? BigInt(context.source)
      : value,
  );
}

/** JSON text of a value that `parse` returned. */
export const stringify = (value, indent) =>
  JSON.stringify(
    value,
    (_, inner) => (typeof inner === "bigint" ? (JSON.rawJSON?.(String(inner)) ?? String(inner)) : inner),
    indent,
  );
