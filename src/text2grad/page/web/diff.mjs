// What changed between two texts, word by word. No DOM.
import { pointsOf, wordsOf } from "./text.mjs";

const MOST = 1500; // words; longer texts are compared by lines

const unitsOf = (text) => {
  const points = pointsOf(text);
  const words = wordsOf(text, points);
  if (words.length > MOST) return text.split(/(?<=\n)/);
  const edges = [...new Set([0, points.length - 1, ...words.flat()])].sort((a, b) => a - b);
  return edges.slice(1).map((edge, at) => text.slice(points[edges[at]], points[edge]));
};

// [kind, text]: "same", "gone" (only before) or "added"; joined, they are both texts.
export const diffOf = (before, after) => {
  const old = unitsOf(before);
  const now = unitsOf(after);
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(old.length, now.length) - head && old.at(-1 - tail) === now.at(-1 - tail)) tail += 1;
  const middle = between(old.slice(head, old.length - tail), now.slice(head, now.length - tail));
  const parts = [
    ...now.slice(0, head).map((text) => ["same", text]), ...middle, ...now.slice(now.length - tail).map((text) => ["same", text]),
  ];
  return joined(parts);
};

// The longest common subsequence, by its table.
const between = (old, now) => {
  if (old.length * now.length > 4e6) return [...old.map((text) => ["gone", text]), ...now.map((text) => ["added", text])];
  const width = now.length + 1;
  const lengths = new Uint32Array((old.length + 1) * width);
  for (let a = old.length - 1; a >= 0; a -= 1) {
    for (let b = now.length - 1; b >= 0; b -= 1) {
      lengths[a * width + b] = old[a] === now[b]
        ? lengths[(a + 1) * width + b + 1] + 1
        : Math.max(lengths[(a + 1) * width + b], lengths[a * width + b + 1]);
    }
  }
  const parts = [];
  let a = 0;
  let b = 0;
  while (a < old.length || b < now.length) {
    if (a < old.length && b < now.length && old[a] === now[b]) {
      parts.push(["same", now[b]]);
      a += 1;
      b += 1;
    } else if (b === now.length || (a < old.length && lengths[(a + 1) * width + b] >= lengths[a * width + b + 1])) {
      parts.push(["gone", old[a]]);
      a += 1;
    } else {
      parts.push(["added", now[b]]);
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
