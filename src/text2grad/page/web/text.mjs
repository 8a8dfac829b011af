// Text as records count it (code points) and as people read it (words, visible characters). No DOM.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;
const KEPT = new Set(["\n", "\t", "\u200c", "\u200d"]); // the two joiners shape Indic and Persian text and emoji

export const isUnseen = (character) => !KEPT.has(character) && UNSEEN.test(character);

// Spell out a character that is invisible, or that would act on the text around it.
export const spelled = (character) => {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
};

export const spelledOut = (text) => Array.from(text, (character) => (isUnseen(character) ? spelled(character) : character)).join("");

// The UTF-16 index of every code point, and of the end.
export const pointsOf = (text) => {
  const points = [];
  for (let at = 0; at < text.length; at += text.codePointAt(at) > 0xffff ? 2 : 1) points.push(at);
  points.push(text.length);
  return points;
};

// The index of the code point that contains a UTF-16 index.
export const pointAt = (points, index) => {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle] <= index) low = middle;
    else high = middle - 1;
  }
  return low;
};

// The segmenter takes quadratic time, so it gets stretches of the text, cut before whitespace.
const STRETCH = /[^]{1,1000}(?=\s)|[^]{1,1000}/gu;

const segmentsOf = (text) => {
  if (!globalThis.Intl?.Segmenter) return [...text.matchAll(/[^\s]+/gu)].map((match) => [match[0], match.index]);
  const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });
  return [...text.matchAll(STRETCH)].flatMap((stretch) =>
    Array.from(segmenter.segment(stretch[0]), ({ segment, index }) => [segment, stretch.index + index]));
};

// The intervals [start, end) of words and signs between two code points; whitespace is left out.
export const wordsOf = (text, points, from = 0, to = points.length - 1) =>
  segmentsOf(text.slice(points[from], points[to]))
    .filter(([segment]) => segment.trim() !== "")
    .map(([segment, index]) => [
      pointAt(points, points[from] + index),
      pointAt(points, points[from] + index + segment.length),
    ]);

// Extend an interval to the words that it touches; null if it touches none.
export const snapped = (words, start, end) => {
  const touched = words.filter(([a, b]) => a < Math.max(end, start + 1) && start < b);
  return touched.length ? [touched[0][0], touched.at(-1)[1]] : null;
};

// Cut [start, end) wherever a place begins or ends; `of` has the indices of the places around a piece.
export const cut = (start, end, places) => {
  const edges = new Set([start, end]);
  places.forEach(([a, b]) => [a, b].forEach((edge) => edge > start && edge < end && edges.add(edge)));
  const sorted = [...edges].sort((a, b) => a - b);
  const opening = new Map();
  places.forEach(([a], index) => {
    const at = Math.max(a, start);
    opening.set(at, [...(opening.get(at) || []), index]);
  });
  let open = [];
  return sorted.slice(0, -1).map((edge, number) => {
    open = [...open.filter((index) => places[index][1] > edge), ...(opening.get(edge) || [])];
    open = open.filter((index) => places[index][1] > edge);
    return { start: edge, end: sorted[number + 1], of: [...open].sort((a, b) => a - b) };
  });
};

export const minus = (text) => String(text).replaceAll("-", "−");

export const cutAt = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Return a function that drops the words that all titles start with.
export const shortTitles = (titles) => {
  const [first = "", ...others] = new Set(titles);
  let shared = others.length ? first.length : 0;
  for (const title of others) while (!title.startsWith(first.slice(0, shared))) shared -= 1;
  shared = first.lastIndexOf(" ", shared - 1) + 1;
  return (title) => (shared > 12 && title.length > shared ? `… ${title.slice(shared)}` : title);
};
