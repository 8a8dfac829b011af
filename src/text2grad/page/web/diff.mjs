// The difference of two texts, word by word. No DOM.
import { pointsOf, wordsOf } from "./text.mjs";

const MOST = 1500; // words; longer texts are compared by lines

const unitsOf = (text) => {
  const points = pointsOf(text);
  const words = wordsOf(text, points);
  if (words.length > MOST) return text.split(/(?<=\n)/);
  const edges = [...new Set([0, points.length - 1, ...words.flat()])].sort((a, b) => a - b);
  return edges.slice(1).map((edge, at) => text.slice(points[edges[at]], points[edge]));
};

// Return pairs [kind, text]; the kind is "same", "gone" (only in `before`) or "added" (only in `after`).
export const diffOf = (before, after) => {
  const old = unitsOf(before);
  const updated = unitsOf(after);
  let head = 0;
  while (head < old.length && head < updated.length && old[head] === updated[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(old.length, updated.length) - head && old.at(-1 - tail) === updated.at(-1 - tail)) tail += 1;
  const middle = alignUnits(old.slice(head, old.length - tail), updated.slice(head, updated.length - tail));
  const parts = [
    ...updated.slice(0, head).map((text) => ["same", text]), ...middle, ...updated.slice(updated.length - tail).map((text) => ["same", text]),
  ];
  return joined(parts);
};

// Align two sequences by their longest common subsequence.
const alignUnits = (old, updated) => {
  if (old.length * updated.length > 4e6) return [...old.map((text) => ["gone", text]), ...updated.map((text) => ["added", text])];
  const width = updated.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let a = old.length - 1; a >= 0; a -= 1) {
    for (let b = updated.length - 1; b >= 0; b -= 1) {
      lengths[a * width + b] = old[a] === updated[b]
        ? lengths[(a + 1) * width + b + 1] + 1
        : Math.max(lengths[(a + 1) * width + b], lengths[a * width + b + 1]);
    }
  }
  const parts = [];
  let a = 0;
  let b = 0;
  while (a < old.length || b < updated.length) {
    if (a < old.length && b < updated.length && old[a] === updated[b]) {
      parts.push(["same", updated[b]]);
      a += 1;
      b += 1;
    } else if (b === updated.length || (a < old.length && lengths[(a + 1) * width + b] >= lengths[a * width + b + 1])) {
      parts.push(["gone", old[a]]);
      a += 1;
    } else {
      parts.push(["added", updated[b]]);
      b += 1;
    }
  }
  return parts;
};

const joined = (parts) => {
  const result = [];
  for (const [kind, text] of parts) {
    if (text === "") continue;
    if (result.at(-1)?.[0] === kind) result.at(-1)[1] += text;
    else result.push([kind, text]);
  }
  return result;
};
