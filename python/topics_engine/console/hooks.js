// Hooks that several views use.

import { useCallback, useEffect, useRef, useState } from "./vendor-preact.js";

const REPAINT_MS = 1000;
const TIMEOUT_MS = 10_000;

/** Calls `load(signal)` once a second while the page is visible. Returns `{data, at, error, reload}`; what
 *  was loaded last, at `at`, stays while a request fails or gets no answer. */
export function usePoll(load, dependencies) {
  const [result, setResult] = useState({});
  const reload = useRef(() => {});
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    let running = false;
    const poll = async () => {
      clearTimeout(timer);
      if (running || controller.signal.aborted) return;
      running = true;
      try {
        const data = await load(AbortSignal.any([controller.signal, AbortSignal.timeout(TIMEOUT_MS)]));
        if (!controller.signal.aborted) setResult({ data, at: Date.now() });
      } catch (error) {
        if (!controller.signal.aborted) setResult((before) => ({ ...before, error }));
      }
      running = false;
      if (!document.hidden) timer = setTimeout(poll, REPAINT_MS);
    };
    const shown = () => document.hidden || poll();
    reload.current = poll;
    document.addEventListener("visibilitychange", shown);
    poll();
    return () => {
      document.removeEventListener("visibilitychange", shown);
      controller.abort();
      clearTimeout(timer);
    };
  }, dependencies);
  return { ...result, reload: useCallback(() => reload.current(), []) };
}

/** Rates of counters, from samples that arrive with each poll: `rates(name)` is the last 60. */
export function useRates(counters, at) {
  const samples = useRef(new Map());
  const last = useRef(0);
  if (counters && at !== last.current) {
    const seconds = (at - last.current) / 1000;
    for (const [name, value] of Object.entries(counters)) {
      const known = samples.current.get(name);
      if (!known) samples.current.set(name, { value, rates: [] });
      else {
        // A counter that went back belongs to a new topic or a restarted server.
        known.rates = [...known.rates.slice(-59), Math.max(0, (value - known.value) / seconds)];
        known.value = value;
      }
    }
    for (const name of samples.current.keys()) if (!(name in counters)) samples.current.delete(name);
    last.current = at;
  }
  return (name) => samples.current.get(name)?.rates ?? [];
}

/** Runs a request of the user; `run` resolves to whether it succeeded, `error` is why it did not. */
export function useAction() {
  const [state, setState] = useState({ busy: false });
  const run = useCallback(async (work) => {
    setState({ busy: true });
    try {
      await work();
      setState({ busy: false });
      return true;
    } catch (error) {
      setState({ busy: false, error });
      return false;
    }
  }, []);
  return { ...state, run };
}
