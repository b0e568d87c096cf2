// The metrics of the server, from their Prometheus text.

import { text } from "./api.js";

/** Families by name; each has its samples `{name, labels, value}`. */
export class Metrics {
  constructor(source) {
    this.samples = new Map();
    for (const line of source.split("\n")) {
      const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (!found) continue;
      const [, name, labels, value] = found;
      if (!this.samples.has(name)) this.samples.set(name, []);
      this.samples.get(name).push({ labels: parseLabels(labels ?? ""), value: Number(value) });
    }
  }

  /** The value of a metric without labels, or with `of` as the value of a label; `undefined` if there is none. */
  value(name, of) {
    const samples = this.samples.get(name) ?? [];
    return samples.find(({ labels }) => of === undefined || Object.values(labels).includes(of))?.value;
  }

  /** Samples of a family with labels. */
  of(name) {
    return this.samples.get(name) ?? [];
  }

  /** A histogram: how many fell into each bucket, below its bound in seconds. */
  histogram(name) {
    let below = 0;
    const buckets = this.of(`${name}_bucket`).map(({ labels, value }) => {
      const bucket = { le: labels.le === "+Inf" ? Infinity : Number(labels.le), count: value - below };
      below = value;
      return bucket;
    });
    return { buckets, count: this.value(`${name}_count`) ?? 0, sum: this.value(`${name}_sum`) ?? 0 };
  }
}

function parseLabels(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
  }
  return labels;
}

export const loadMetrics = async (signal) => new Metrics(await text("v0/metrics", "text/plain", signal));

/** The bound below which this share of a histogram lies, in seconds. */
export function quantile({ buckets, count }, share) {
  let below = 0;
  for (const bucket of buckets) {
    below += bucket.count;
    if (count && below >= share * count) return bucket.le;
  }
  return undefined;
}
