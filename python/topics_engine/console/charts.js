// Charts, each with its numbers as a table beside it.

import { Legend } from "./parts.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor-preact.js";

const HEIGHT = 180;
/** Of how many bars one has its label, where there is no room for all. */
const STEPS = [1, 2, 3, 4, 6, 8];
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Rises when the colour scheme changes: a canvas does not follow it by itself. */
function useScheme() {
  const [scheme, setScheme] = useState(dark.matches);
  useEffect(() => {
    const changed = () => setScheme(dark.matches);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  return scheme;
}

/** A chart by uPlot. `make()` returns its options without a size; `data` is drawn again when it changes. */
function Plot({ label, make, data }) {
  const element = useRef(null);
  const plot = useRef(null);
  const scheme = useScheme();
  useLayoutEffect(() => {
    const size = () => ({ width: element.current.clientWidth, height: HEIGHT });
    const bare = { legend: { show: false }, cursor: { show: false } };
    plot.current = new window.uPlot({ ...make(), ...size(), ...bare }, data, element.current);
    const observer = new ResizeObserver(() => plot.current.setSize(size()));
    observer.observe(element.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [scheme]);
  useEffect(() => plot.current.setData(data), [data]);
  return html`<div class="plot" ref=${element} role="img" aria-label=${label}></div>`;
}

const axis = (more) => ({
  stroke: colour("muted"),
  font: "12px system-ui, sans-serif",
  grid: { stroke: colour("line"), width: 1 },
  ticks: { show: false },
  ...more,
});

/** Bars with a label below each. */
export function Bars({ label, labels, values }) {
  const make = () => ({
    scales: {
      x: { time: false, range: () => [-0.6, labels.length - 0.4] },
      y: { range: (_, __, most) => [0, most || 1] },
    },
    axes: [
      axis({ values: (_, at) => at.map((n) => labels[n] ?? ""), grid: { show: false }, incrs: STEPS, size: 32 }),
      axis({ size: 56 }),
    ],
    series: [
      {},
      {
        fill: colour("accent"),
        stroke: colour("accent"),
        paths: window.uPlot.paths.bars({ size: [0.8, 48] }),
        points: { show: false },
      },
    ],
  });
  return html`<${Plot} key=${labels.join()} label=${label} make=${make} data=${[labels.map((_, n) => n), values]} />`;
}

/** Lines of the last minute; `lines` is `{title, values}`, a value a second. */
export function Lines({ label, lines }) {
  const length = Math.max(2, ...lines.map((l) => l.values.length));
  const x = Array.from({ length }, (_, n) => n - length + 1);
  const padded = lines.map((l) => [...Array(length - l.values.length).fill(null), ...l.values]);
  const make = () => ({
    scales: { x: { time: false, range: () => [-59, 0] }, y: { range: (_, __, most) => [0, most * 1.1 || 1] } },
    axes: [
      axis({ values: (_, at) => at.map((n) => (n ? `${n} s` : "now")), incrs: [10, 20], size: 32 }),
      axis({ size: 56 }),
    ],
    series: [
      {},
      ...lines.map((_, n) => ({ stroke: colour(n ? "second" : "accent"), width: 2, points: { show: false } })),
    ],
  });
  return html`
    <div>
      <${Plot} label=${label} make=${make} data=${[x, ...padded]} />
      <${Legend} of=${lines.map((line, n) => [`line-${n}`, line.title])} />
    </div>`;
}
