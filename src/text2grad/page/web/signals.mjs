// Format the numbers of tokens, filter and sort samples, and encode a view in its address. No DOM.
import { minus } from "./text.mjs";

const NAMES = { kl: "KL", logp: "log-probability", logp_change: "change of log-probability", learned: "mask (learned)" };
export const nameOf = (signal) => NAMES[signal] || signal;

export const exact = (value) => (value === null || value === undefined ? "–" : minus(Number(value.toPrecision(4))));

// The largest size of a signal in a sample, never 0.
export const scaleOf = (values) => Math.max(1e-12, ...values.map((value) => Math.abs(value || 0)));

// The colour strength of a number, 0 to 1; the square root keeps a span's ±0.1 visible next to a score of ±1.
export const strengthOf = (value, scale) => Math.sqrt(Math.min(1, Math.abs(value || 0) / scale));

export const signOf = (value) => (value > 0 ? "plus" : value < 0 ? "minus" : "");

// True if the advantage of a token has another sign than its reward from the critique.
export const isAgainst = (rows, index) => (rows.advantage?.[index] || 0) * (rows.delta?.[index] || 0) < 0;

// All numbers of a token, in words.
export const tokenWords = (sample, index) => {
  const [start, end] = sample.intervals[index] || [];
  const id = sample.ids?.[index] === undefined ? "" : ` · id ${sample.ids[index]}`;
  const where = start === undefined ? "" : start === end ? " · no characters" : ` · characters ${start}–${end}`;
  const numbers = Object.keys(sample.rows).map((row) => `${nameOf(row)} ${exact(sample.rows[row][index])}`);
  const against = isAgainst(sample.rows, index) ? " · ▲ wrong sign" : "";
  return `${index + 1}/${sample.tokens.length} “${sample.tokens[index]}”${id}${where} · ${numbers.join(" · ")}${against}`;
};

// ---- filters and orders

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

// `values` has the value of each active filter; `hits` are the keys that a search returned, or null.
export const matching = (entries, values, hits = null) => {
  const active = FILTERS.filter((name) => values[name]);
  return entries.filter(
    (entry) => active.every((name) => TESTS[name](entry, values[name])) && (hits === null || hits.has(entry.key)),
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

// Prompts that were answered in several steps, as [id, is a probe], probes first.
export const recurring = (entries) => {
  const steps = new Map();
  for (const { id, step, probe } of entries) {
    const entry = steps.get(id) || { steps: new Set(), probe: false };
    entry.steps.add(step);
    entry.probe = entry.probe || probe;
    steps.set(id, entry);
  }
  const repeated = [...steps].filter(([id, entry]) => id && (entry.probe || entry.steps.size > 1));
  return repeated.map(([id, entry]) => [id, entry.probe]).sort((a, b) => b[1] - a[1]);
};

// One answer per step of the same method to the prompt of a sample, in order; at most `most`, with both ends.
export const overSteps = (entries, sample, most = 40) => {
  const first = new Map();
  for (const entry of entries) {
    if (!sample.id || entry.id !== sample.id || entry.method !== sample.method) continue;
    if (!first.has(entry.step) || entry.key === sample.key) first.set(entry.step, entry);
  }
  const ofSteps = [...first.values()].sort((a, b) => a.step - b.step);
  const stride = (ofSteps.length - 1) / (most - 1);
  return ofSteps.length <= most ? ofSteps : Array.from({ length: most }, (_, at) => ofSteps[Math.round(at * stride)]);
};

// ---- the address: #sample=text2grad%2F12&by=delta&wrong=1

export const readAddress = (hash) => Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));

export const addressOf = (state) => {
  const fields = Object.entries(state).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(fields.map(([name, value]) => [name, value === true ? "1" : String(value)])).toString();
  return text ? `#${text}` : "#samples";
};
