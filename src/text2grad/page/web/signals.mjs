// Numbers of tokens and samples: how they are shown, found and ordered, and the address of a view. No DOM.
import { minus } from "./text.mjs";

export const NAMES = { kl: "KL", logp: "log-probability", logp_change: "change of log-probability", learned: "mask (learned)" };
export const nameOf = (signal) => NAMES[signal] || signal;

export const exact = (value) => (value === null || value === undefined ? "–" : minus(Number(value.toPrecision(4))));

// The largest size of a signal in a sample, never 0.
export const scaleOf = (values) => Math.max(1e-12, ...values.map((value) => Math.abs(value || 0)));

// How strong a number is drawn, 0 to 1; the root keeps a span's ±0.1 in sight beside a verdict of ±1.
export const strengthOf = (value, scale) => Math.sqrt(Math.min(1, Math.abs(value || 0) / scale));

export const signOf = (value) => (value > 0 ? "plus" : value < 0 ? "minus" : "");

// Whether the update pushes a token against what the critique pays for it.
export const isAgainst = (rows, index) => (rows.advantage?.[index] || 0) * (rows.delta?.[index] || 0) < 0;

// All that is known of a token, in words.
export const tokenWords = (sample, index) => {
  const [start, end] = sample.intervals[index] || [];
  const id = sample.ids?.[index] === undefined ? "" : ` · id ${sample.ids[index]}`;
  const where = start === undefined ? "" : start === end ? " · no characters" : ` · characters ${start}–${end}`;
  const numbers = Object.keys(sample.rows).map((row) => `${nameOf(row)} ${exact(sample.rows[row][index])}`);
  const against = isAgainst(sample.rows, index) ? " · ▲ wrong sign" : "";
  return `${index + 1}/${sample.tokens.length} “${sample.tokens[index]}”${id}${where} · ${numbers.join(" · ")}${against}`;
};

// ---- which samples, and in which order

const SCORES = {
  positive: (score) => score !== null && score > 0,
  zero: (score) => score === 0,
  negative: (score) => score !== null && score < 0,
  none: (score) => score === null,
};

const TESTS = {
  method: (entry, value) => entry.method === value,
  step: (entry, value) => String(entry.step) === value,
  prompt: (entry, value) => entry.id === value,
  score: (entry, value) => (SCORES[value] || (() => true))(entry.score),
  least: (entry, value) => entry.length >= Number(value),
  most: (entry, value) => entry.length <= Number(value),
  failed: (entry) => entry.failed,
  lost: (entry) => entry.lost_count > 0,
  wrong: (entry) => entry.wrong > 0,
  poor: (entry) => entry.poor > 0,
  probe: (entry) => entry.probe,
};

export const FILTERS = Object.keys(TESTS);

// wanted: filter -> its value, empty where it is off; hits: keys that a search found, or null.
export const matching = (entries, wanted, hits = null) => {
  const active = FILTERS.filter((name) => wanted[name]);
  return entries.filter(
    (entry) => active.every((name) => TESTS[name](entry, wanted[name])) && (hits === null || hits.has(entry.key)),
  );
};

const last = (value) => (value === null ? -Infinity : value);
const ORDERS = {
  newest: (a, b) => b.step - a.step,
  prompt: (a, b) => (a.title < b.title ? -1 : a.title > b.title ? 1 : a.step - b.step),
  best: (a, b) => last(b.score) - last(a.score),
  worst: (a, b) => (a.score === null) - (b.score === null) || a.score - b.score,
  longest: (a, b) => b.length - a.length,
  shortest: (a, b) => a.length - b.length,
  wrong: (a, b) => b.wrong - a.wrong,
  lost: (a, b) => b.lost_count - a.lost_count,
  delta: (a, b) => last(b.delta) - last(a.delta),
};

export const ordered = (entries, order) => (ORDERS[order] ? [...entries].sort(ORDERS[order]) : entries);

// ---- one prompt over steps

// Prompts that were answered in several steps, [id, whether it is a fixed probe prompt]: the probes first.
export const recurring = (entries) => {
  const steps = new Map();
  for (const { id, step, probe } of entries) {
    const known = steps.get(id) || { steps: new Set(), probe: false };
    known.steps.add(step);
    known.probe = known.probe || probe;
    steps.set(id, known);
  }
  const found = [...steps].filter(([id, known]) => id && (known.probe || known.steps.size > 1));
  return found.map(([id, known]) => [id, known.probe]).sort((a, b) => b[1] - a[1]);
};

// An answer of each step of the same method to the prompt of a sample, in their order; at most `most`, ends kept.
export const overSteps = (entries, sample, most = 40) => {
  const first = new Map();
  for (const entry of entries) {
    if (!sample.id || entry.id !== sample.id || entry.method !== sample.method) continue;
    if (!first.has(entry.step) || entry.key === sample.key) first.set(entry.step, entry);
  }
  const every = [...first.values()].sort((a, b) => a.step - b.step);
  const stride = (every.length - 1) / (most - 1);
  return every.length <= most ? every : Array.from({ length: most }, (_, at) => every[Math.round(at * stride)]);
};

// ---- the address: #sample=text2grad%2F12&by=delta&wrong=1

export const readAddress = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));

export const addressOf = (state) => {
  const kept = Object.entries(state).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(kept.map(([name, value]) => [name, value === true ? "1" : String(value)])).toString();
  return text ? `#${text}` : "#samples";
};
