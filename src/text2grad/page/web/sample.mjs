// One sample: its conversation, with tokens coloured by a signal, and its critique with the words it is about.
import { cutAt, minus } from "./text.mjs";
import { exact, isAgainst, scaleOf, signOf, strengthOf, tokenWords } from "./signals.mjs";
import { diffOf } from "./diff.mjs";
import { element } from "./dom.mjs";

const MOST_PIECES = 6000; // drawn at once; a button shows the rest of a longer answer

const pieceOf = (sample, [text, spans, tokens]) => {
  const labels = new Set(spans.map((index) => sample.spans[index].label));
  if (labels.size > 1) labels.delete("improvable");
  const piece = element(labels.size ? "mark" : "span", labels.size > 1 ? "both" : [...labels].join(""), text);
  if (spans.length) piece.dataset.spans = spans.join(" ");
  if (tokens.length) {
    piece.dataset.tokens = tokens.join(" ");
    piece.classList.add("tok");
    if (tokens.some((index) => isAgainst(sample.rows, index))) piece.classList.add("against");
  }
  return piece;
};

const turnOf = (sample, turn) => {
  const role = element("p", "role", turn.role);
  if (!turn.pieces) return [role, element("pre", "said", turn.content)];
  const text = turn.pieces.map(([words]) => words).join("");
  const body = element("pre", /\n[ \t]+\S|^```/m.test(text) ? "response code" : "response"); // where columns matter
  body.append(...turn.pieces.slice(0, MOST_PIECES).map((piece) => pieceOf(sample, piece)));
  if (turn.pieces.length <= MOST_PIECES) return [role, body];
  const more = element("button", "", `show the rest (${turn.pieces.length - MOST_PIECES} more pieces)`);
  more.type = "button";
  more.addEventListener("click", () => {
    more.remove();
    body.append(...turn.pieces.slice(MOST_PIECES).map((piece) => pieceOf(sample, piece)));
    body.dispatchEvent(new Event("redraw", { bubbles: true }));
  });
  return [role, body, more];
};

const promptOf = (sample) => {
  const fold = element("details", "prompt");
  fold.append(element("summary", "", "Prompt"));
  for (const message of sample.prompt) fold.append(element("p", "role", message.role), element("pre", "", message.content));
  fold.open = sample.prompt.reduce((size, message) => size + message.content.length, 0) < 600;
  return fold;
};

const critiqueOf = (sample) => {
  if (sample.failure) return element("p", "warning", `▲ No critique: ${sample.failure}`);
  const words = element("p", "critique");
  if (!sample.critique.length) words.textContent = "(an empty critique)";
  for (const [text, spans] of sample.critique) {
    const clause = element("span", spans.length ? "clause" : "", text);
    if (spans.length) clause.dataset.spans = spans.join(" ");
    words.append(clause);
  }
  return words;
};

const spansOf = (sample) => {
  const list = element("ul", "spans");
  sample.spans.forEach((span, index) => {
    const item = element("li");
    item.dataset.spans = index;
    item.append(element("b", span.label, span.label), " ", element("code", "", span.text), " ", span.reason);
    list.append(item);
  });
  if (sample.spans.length) {
    list.tabIndex = 0;
    list.setAttribute("aria-label", "Spans: arrow keys show where each is");
  }
  return list;
};

const lostOf = (sample) => {
  const list = element("ul", "lost");
  for (const quote of sample.lost) {
    const item = element("li");
    item.append(element("b", "", "lost"), " ");
    if (quote.text) item.append(element("code", "", quote.text), " ");
    item.append(quote.reason);
    list.append(item);
  }
  return list;
};

export const textOf = (sample) =>
  sample.talk.map((turn) => (turn.pieces ? turn.pieces.map(([text]) => text).join("") : turn.content)).join("\n\n");

const TAGS = { same: "span", gone: "del", added: "ins" };

// Many line breaks in a row, which untrained models write, become one empty line.
export const diffPart = ([kind, text]) => element(TAGS[kind], kind, text.replace(/\n{3,}/g, "\n\n"));

export const diffElement = (before, after) => {
  const body = element("pre", "diff");
  body.append(...diffOf(before, after).map(diffPart));
  if (before === after) body.prepend(element("span", "hint", "(the same)\n"));
  return body;
};

// Draw a sample into `article`; returns functions that colour its tokens and select one, and a box for versions.
export const showSample = (sample, article, onToken) => {
  const heading = element("h3");
  const score = sample.score === null ? "no score" : `score ${minus(sample.score)}`;
  heading.textContent = `${cutAt(sample.title, 80)} · ${sample.method} · step ${sample.step} · ${score}`;
  const talk = element("div", "talk");
  talk.tabIndex = 0;
  talk.setAttribute("role", "group");
  talk.setAttribute("aria-label", "Response: arrow keys move from token to token");
  talk.append(...sample.talk.flatMap((turn) => turnOf(sample, turn)));
  const readout = element("p", "readout", "Point at a token, or move with ← →, to read its numbers.");
  readout.setAttribute("aria-live", "polite");
  const versions = element("div", "versions");
  article.replaceChildren(
    heading, promptOf(sample), talk, readout, critiqueOf(sample), spansOf(sample), lostOf(sample),
    element("p", "hint", sample.facts), versions,
  );
  linkSpans(article);
  const token = followTokens(sample, article, talk, readout, onToken);
  let signals = ["", ""];
  const colour = (by, bar) => {
    signals = [by, bar];
    colourTokens(sample, talk, by, bar);
  };
  talk.addEventListener("redraw", () => colour(...signals));
  return { colour, token, versions };
};

const colourTokens = (sample, talk, by, bar) => {
  const [values, bars] = [sample.rows[by] || [], sample.rows[bar] || []];
  const [scale, barScale] = [scaleOf(values), scaleOf(bars)];
  for (const piece of talk.querySelectorAll(".tok")) {
    const index = Number(piece.dataset.tokens.split(" ")[0]);
    piece.dataset.sign = signOf(values[index]);
    piece.dataset.bar = signOf(bars[index]);
    piece.style.setProperty("--strength", `${Math.round(70 * strengthOf(values[index], scale))}%`);
    piece.style.setProperty("--bar", `${(9 * strengthOf(bars[index], barScale)).toFixed(1)}px`);
  }
};

export const legendOf = (sample, signal) => {
  const values = (sample.rows[signal] || []).filter((value) => value !== null);
  if (!values.length) return "not in this sample";
  return `${exact(Math.min(...values))} to ${exact(Math.max(...values))}`;
};

// Pointing at a span highlights its words, its clause of the critique, and its line in the list.
const linkSpans = (article) => {
  const light = (spans) => {
    article.querySelectorAll(".linked").forEach((node) => node.classList.remove("linked"));
    const selector = spans.map((span) => `[data-spans~="${span}"]`).join(", ");
    if (selector) article.querySelectorAll(selector).forEach((node) => node.classList.add("linked"));
  };
  article.onpointerover = (event) => light(event.target.closest?.("[data-spans]")?.dataset.spans.split(" ") || []);
  const list = article.querySelector(".spans");
  let at = -1;
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    at = Math.max(0, Math.min(list.children.length - 1, at + by));
    light([String(at)]);
    article.querySelector(`.talk [data-spans~="${at}"]`)?.scrollIntoView({ block: "nearest" });
  });
  list.addEventListener("blur", () => light([]));
};

const followTokens = (sample, article, talk, readout, onToken) => {
  let current = -1;
  const select = (index, keep = true) => {
    current = Math.max(0, Math.min(sample.tokens.length - 1, index));
    talk.querySelectorAll(".lit").forEach((lit) => lit.classList.remove("lit"));
    talk.querySelectorAll(`[data-tokens~="${current}"]`).forEach((piece) => piece.classList.add("lit"));
    readout.textContent = tokenWords(sample, current);
    if (keep) onToken(current);
  };
  // Not "pointerover", which is also sent where the page moves under a pointer that rests.
  talk.addEventListener("pointermove", (event) => {
    const piece = event.target.closest("[data-tokens]");
    if (piece && !piece.classList.contains("lit")) select(Number(piece.dataset.tokens.split(" ")[0]), false);
  });
  talk.addEventListener("click", (event) => {
    const piece = event.target.closest("[data-tokens]");
    if (piece) select(Number(piece.dataset.tokens.split(" ")[0]));
  });
  talk.addEventListener("keydown", (event) => {
    const end = sample.tokens.length - 1;
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, ArrowUp: current - 10, ArrowDown: current + 10, Home: 0, End: end };
    if (moves[event.key] === undefined || end < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    select(moves[event.key]);
    talk.querySelector(".lit")?.scrollIntoView({ block: "nearest" });
  });
  return select;
};
