// Numbers, sizes, times and durations as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false };
const DAY = { year: "numeric", month: "short", day: "2-digit" };
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 12,345 */
export const count = (n) => (n === null || n === undefined ? "–" : WHOLE.format(n));

/** 12.3K */
export const compact = (n) => SHORT.format(n);

/** 1.5 MiB */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const unit = n < 1024 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(n) / 10));
  return `${unit ? (n / 1024 ** unit).toFixed(1) : n} ${UNITS[unit]}`;
}

/** 42/s */
export const rate = (n) => (n === undefined ? "–" : `${n < 10 && n % 1 ? n.toFixed(1) : compact(n)}/s`);

/** 14:03:22.123 */
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB", CLOCK);

/** 23 Nov 2026, 14:03:22.123 */
export const time = (ms) => (ms ? new Date(ms).toLocaleString("en-GB", { ...DAY, ...CLOCK }) : "never");

/** 1.5 ms, 3 min */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const steps = [
    [1e-3, "ns", 1e-6],
    [1, "µs", 1e-3],
    [1000, "ms", 1],
    [60_000, "s", 1000],
    [3_600_000, "min", 60_000],
    [86_400_000, "h", 3_600_000],
  ];
  const [, unit, size] = steps.find(([below]) => Math.abs(ms) < below) ?? [0, "d", 86_400_000];
  const n = ms / size;
  return `${n < 10 && n % 1 ? n.toFixed(1) : WHOLE.format(n)} ${unit}`;
}

/** 3 min ago */
export const ago = (ms) => (ms ? `${duration(Math.max(0, Date.now() - ms))} ago` : "never");

/** Units of the fields of a config, by the ending of the field: a number without a unit has the first. */
const FIELD_UNITS = {
  _ms: { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 },
  _bytes: { B: 1, KB: 1e3, KiB: 2 ** 10, MB: 1e6, MiB: 2 ** 20, GB: 1e9, GiB: 2 ** 30, TB: 1e12, TiB: 2 ** 40 },
};
const unitsOf = (field) => FIELD_UNITS[Object.keys(FIELD_UNITS).find((ending) => field.endsWith(ending))];

/** What a field of a config accepts besides a number. */
export const unitHint = (field) =>
  ({ _ms: "30s, 15m, 12h, 7d; a number is ms", _bytes: "500MB, 64MiB, 10GiB; a number is bytes" })[
    Object.keys(FIELD_UNITS).find((ending) => field.endsWith(ending))];

/** The value of a field of a config, in the largest unit in which it is whole: 7d, 64MiB. Empty for null. */
export function withUnit(field, value) {
  if (value === null || value === undefined) return "";
  const units = value > 0 ? Object.entries(unitsOf(field) ?? {}) : [];
  const fitting = units.filter(([, size]) => value % size === 0);
  const [unit, size] = fitting.at(-1) ?? ["", 1];
  return `${typeof value === "number" ? value / size : value}${unit}`;
}

/** The number that text with a unit, or without one, stands for; `undefined` if it is no such text. */
export function fromUnit(field, text) {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(text.trim()) ?? [];
  const units = Object.entries(unitsOf(field) ?? { "": 1 });
  const found = unit ? units.find(([name]) => name.toLowerCase() === unit.toLowerCase()) : units[0];
  return number && found && Math.round(number * found[1]);
}

/** A ratio as 12.5 % */
export const percent = (ratio) => `${(100 * ratio).toFixed(ratio && ratio < 0.1 ? 1 : 0)} %`;
