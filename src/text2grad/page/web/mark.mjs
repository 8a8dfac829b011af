// The annotation page: one answer at a time, marked by pointer or by keyboard alone.
import { cut, cutAt, isUnseen, minus, pointAt, pointsOf, shortTitles, snapped, spelledOut, wordsOf } from "./text.mjs";
import {
  EMPTY, LABELS, Outbox, VERDICTS, markAt, nextThat, same, withCheck, withMark, withReason,
  withSuggestionShown, withoutMark,
} from "./opinion.mjs";
import { LongList, button, byId, element, embeddedData, isTyping, openControls } from "./dom.mjs";

const settings = embeddedData("settings");
const NAME = "text2grad-annotator";
const CLASS = { 1: "good", 0: "improvable", "-1": "poor" };

const page = {
  annotator: settings.annotator || localStorage.getItem(NAME) || "",
  entries: [], // all answers of the file
  key: "",
  answer: null, // from the server: messages, response, suggestion
  version: 0,
  past: [], // earlier versions of the opinion, for undo
  opinion: EMPTY,
  points: [],
  words: [],
  place: [0, 0], // indices of the first and the last selected word
  from: 0, // the word where the selection began
};

// ---- the server

const ask = async (path) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
};

const outbox = new Outbox({
  storage: localStorage,
  prefix: `text2grad-act:${settings.file}:`,
  later: (action) => setTimeout(action, 1000),
  send: async (act) => {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("/api/acts", { method: "POST", headers, body: JSON.stringify(act) });
    return { status: response.status, body: await response.json().catch(() => null) };
  },
  onChange: () => showSaved(),
  onConflict: (act, mine, theirs) => onConflict(act, mine, theirs),
});
outbox.onSaved = (act, body) => {
  if (act.item === page.key && act.annotator === page.annotator) page.version = body.version;
  const entry = page.entries.find((other) => other.key === act.item);
  if (entry) entry.marked = body.marked;
  showProgress();
};

const showSaved = () => {
  const unsaved = outbox.acts.length;
  byId("saved").textContent = unsaved ? `saving ${unsaved} …` : "saved";
  byId("saved").classList.toggle("busy", unsaved > 0);
  byId("trouble").hidden = !outbox.trouble;
  byId("trouble").textContent = outbox.trouble && `▲ Not saved yet: ${outbox.trouble}. Nothing is lost; it is kept here and sent again.`;
};

const onConflict = (act, mine, theirs) => {
  if (act.item !== page.key || act.annotator !== page.annotator) return;
  const box = byId("conflict");
  const done = () => {
    box.hidden = true;
    byId("talk").focus();
  };
  const take = (opinion) => () => {
    adopt(theirs);
    if (opinion) change(opinion);
    done();
  };
  const words = element("p", "", "This answer was changed in another tab or by another person under your name. What is there now:");
  const current = element("p", "critique", summaryOf(theirs.history.at(-1)));
  const yours = element("p", "critique", `Yours: ${summaryOf(mine)}`);
  box.replaceChildren(words, current, yours, button("take theirs", take(null)), button("keep mine", take(mine)));
  box.hidden = false;
  box.querySelector("button").focus();
};

// The rating that a score stands for; other scores stay numbers.
const ratingOf = (score) => {
  if (score === null) return "";
  const index = VERDICTS.indexOf(score);
  return index < 0 ? `score ${minus(score)}` : `rating ${index + 1} of ${VERDICTS.length}`;
};

const summaryOf = (opinion) =>
  [
    ...opinion.spans.map((span) => `${LABELS[span.label]} “${textOf(span.start, span.end)}” ${span.reason}`.trim()),
    ratingOf(opinion.score),
    opinion.critique,
    ...opinion.omissions.map((omission) => `missing: ${omission}`),
    opinion.corrected && `better: ${opinion.corrected}`,
  ]
    .filter(Boolean)
    .map(spelledOut)
    .join(" · ") || "nothing";

// ---- the list of answers

const isMine = (entry) => entry.marked.includes(page.annotator);

let titles = String;

const list = new LongList(byId("list"), 72, {
  show: (entry) => {
    const others = entry.marked.filter((name) => name !== page.annotator).map((name) => name || "an unnamed annotator");
    const names = [...(isMine(entry) ? ["me"] : []), ...others].join(", ");
    const status = names ? `${isMine(entry) ? "✓ " : ""}marked by ${names}` : "not marked";
    return [
      element("b", "", spelledOut(titles(entry.title))), element("span", "answer-line", spelledOut(entry.words)),
      element("span", "", spelledOut(status)),
    ];
  },
  choose: (at) => open(list.entries[at].key, false),
});

const listed = () => {
  const which = byId("which").value;
  return page.entries.filter((entry) => which === "all" || isMine(entry) === (which === "mine") || entry.key === page.key);
};

const showProgress = () => {
  const marked = page.entries.filter(isMine).length;
  byId("progress").textContent = `${marked} of ${page.entries.length} marked`;
  byId("bar").value = marked / Math.max(1, page.entries.length); // acts of an earlier page arrive before the entries
  const finished = marked > 0 && marked === page.entries.length;
  if (finished && byId("finished").hidden) setTimeout(() => byId("finished").scrollIntoView({ block: "nearest" }));
  byId("finished").hidden = !finished;
  const entries = listed();
  list.fill(entries, entries.findIndex((entry) => entry.key === page.key));
};

const refresh = async () => {
  page.entries = (await ask("/api/items")).items;
  titles = shortTitles(page.entries.map((entry) => entry.title));
  showProgress();
};

// ---- one answer

const textOf = (start, end) => page.answer.response.slice(page.points[start], page.points[end]);

const adopt = ({ version, history }) => {
  page.version = version;
  page.past = history.slice(0, -1);
  page.opinion = history.at(-1);
  outbox.waiting(page.key, page.annotator).forEach((act) => {
    page.past.push(page.opinion);
    page.opinion = act.opinion;
  });
};

const open = async (key, focus = true) => {
  await leave();
  page.key = key;
  location.hash = `#${key}`;
  const name = encodeURIComponent(page.annotator);
  const answer = await ask(`/api/items/${key}?annotator=${name}`);
  if (page.key !== key) return;
  page.answer = answer;
  page.points = pointsOf(answer.response);
  page.words = answer.messages
    .filter((message) => message.start !== undefined)
    .flatMap(({ start, end }) => wordsOf(answer.response, page.points, start, end));
  page.place = [0, 0];
  page.from = 0;
  adopt(answer);
  byId("conflict").hidden = true;
  const number = page.entries.findIndex((entry) => entry.key === key) + 1;
  byId("heading").textContent = `${number} of ${page.entries.length} · ${spelledOut(cutAt(titles(answer.title), 80))}`;
  if (settings.suggestFirst && answer.suggestion && !page.opinion.shown) {
    change(withSuggestionShown(page.opinion));
  }
  draw();
  showProgress();
  if (focus) byId("talk").focus();
};

// Save the text of the focused field as a separate act.
const leave = async () => {
  if (document.activeElement?.closest?.("#marks, .fields")) document.activeElement.blur();
};

const change = (opinion) => {
  if (same(opinion, page.opinion)) return;
  page.past.push(page.opinion);
  page.opinion = opinion;
  outbox.put(page.key, page.annotator, page.version, opinion);
  draw();
};

const undo = () => {
  if (!page.past.length) return;
  page.opinion = page.past.pop();
  outbox.put(page.key, page.annotator, page.version, page.opinion);
  draw();
};

// ---- drawing

const draw = () => {
  drawTalk();
  drawMarks();
  drawVerdict();
  byId("critique").value = page.opinion.critique;
  byId("missing").value = page.opinion.omissions.join("\n");
  byId("corrected").value = page.opinion.corrected ?? "";
  drawComments();
  byId("undo").disabled = !page.past.length;
  drawSuggestion();
};

const selectedRange = () => {
  const [first, last] = page.place;
  return page.words.length ? [page.words[first][0], page.words[last][1]] : [0, 0];
};

const drawTalk = () => {
  const talk = byId("talk");
  talk.replaceChildren(
    ...page.answer.messages.flatMap((message) => {
      const isPolicyTurn = message.start !== undefined;
      const body = element("pre", isPolicyTurn ? "response" : "said");
      if (isPolicyTurn) body.append(...responseOf(message.start, message.end));
      else body.textContent = spelledOut(message.content);
      return [element("p", "role", isPolicyTurn ? "answer" : message.role), body];
    }),
  );
  showHere();
};

const responseOf = (start, end) => {
  const spans = page.opinion.spans.map((span) => [span.start, span.end]);
  return cut(start, end, [...spans, selectedRange()]).flatMap((piece) => {
    const labels = [...new Set(piece.of.filter((at) => at < spans.length).map((at) => CLASS[page.opinion.spans[at].label]))];
    const style = labels.length > 1 ? "both" : labels.join("");
    const here = piece.of.includes(spans.length);
    return runsOf(piece.start, piece.end).map(([from, to, unseen]) => {
      const words = unseen ? spelledOut(textOf(from, to)) : textOf(from, to);
      const node = element(style ? "mark" : "span", `${style}${here ? " here" : ""}${unseen ? " unseen" : ""}`, words);
      node.dataset.start = from;
      node.dataset.end = to;
      return node;
    });
  });
};

// Split text into [start, end, unseen]: plain runs, and single characters that are spelled out.
const runsOf = (start, end) => {
  const runs = [];
  let from = start;
  const unseen = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
  for (const match of textOf(start, end).matchAll(unseen)) {
    if (!isUnseen(match[0])) continue;
    const at = pointAt(page.points, page.points[start] + match.index);
    if (at > from) runs.push([from, at, false]);
    runs.push([at, at + 1, true]);
    from = at + 1;
  }
  if (end > from) runs.push([from, end, false]);
  return runs;
};

const showHere = () => {
  const here = byId("here");
  if (!page.words.length) {
    here.textContent = "This answer has no words.";
    return;
  }
  const [start, end] = selectedRange();
  const at = markAt(page.opinion, start);
  const span = page.opinion.spans[at];
  const long = textOf(start, end);
  const words = long.length > 160 ? `${long.slice(0, 80)} … ${long.slice(-60)}` : long;
  here.textContent = `“${spelledOut(words)}”${span ? ` · ${LABELS[span.label]}${span.reason ? `: ${spelledOut(span.reason)}` : ""}` : ""}`;
};

const drawMarks = () => {
  byId("marks").replaceChildren(
    ...page.opinion.spans.map((span, index) => {
      const item = element("li");
      const quote = element("code", "", spelledOut(textOf(span.start, span.end)));
      const why = element("input");
      why.value = span.reason;
      why.placeholder = "why";
      why.setAttribute("aria-label", `why ${LABELS[span.label]}: ${textOf(span.start, span.end).slice(0, 60)}`);
      why.addEventListener("change", () => change(withReason(page.opinion, index, why.value.trim())));
      const off = button("×", () => change(withoutMark(page.opinion, index)));
      off.setAttribute("aria-label", `remove: ${textOf(span.start, span.end).slice(0, 60)}`);
      item.append(element("b", CLASS[span.label], LABELS[span.label]), quote, why, off);
      return item;
    }),
  );
};

const drawVerdict = () => {
  const box = byId("verdict");
  if (!box.querySelector("input")) {
    [...VERDICTS, null].forEach((score, index) => {
      const label = element("label");
      const radio = element("input");
      radio.type = "radio";
      radio.name = "verdict";
      radio.value = String(score);
      radio.addEventListener("change", () => change({ ...page.opinion, score }));
      const ends = { 1: " worst", [VERDICTS.length]: " best" };
      const words = score === null ? "none" : `${index + 1}${ends[index + 1] ?? ""}`;
      label.append(radio, ` ${words}`);
      box.append(label);
    });
  }
  box.querySelectorAll("input").forEach((radio) => {
    radio.checked = radio.value === String(page.opinion.score);
  });
};

// Comments of people that are in the file already.
const drawComments = () => {
  byId("comments").replaceChildren(
    ...page.answer.comments.map(({ who, critique, score }) => {
      const rating = score === null ? "" : ` · ${ratingOf(score)}`;
      return element("p", "critique", `${spelledOut(who) || "a person"} wrote: ${spelledOut(critique)}${rating}`);
    }),
  );
};

const drawSuggestion = () => {
  const box = byId("suggestion");
  const suggestion = page.answer.suggestion;
  if (!suggestion) {
    box.replaceChildren();
    return;
  }
  if (!page.opinion.shown) {
    const show = button("", showSuggestion);
    show.append(element("kbd", "", "s"), ` what the ${spelledOut(suggestion.source)} says`);
    show.setAttribute("aria-keyshortcuts", "s");
    box.replaceChildren(show);
    return;
  }
  const when = page.opinion.shown === "first" ? "seen before your own marks" : "seen after your own marks";
  const score = suggestion.score === null ? "" : ` · ${ratingOf(suggestion.score)}`;
  const spans = element("ul", "marks");
  spans.append(...suggestion.spans.map(checkedSpan));
  const lost = suggestion.lost.map((quote) => {
    const line = element("p", "lost");
    line.append(element("b", "", "lost "), element("code", "", spelledOut(quote)), " is not in the answer");
    return line;
  });
  const missing = suggestion.omissions.map((omission) => element("p", "", `missing: ${spelledOut(omission)}`));
  box.replaceChildren(
    element("h3", "", `${spelledOut(suggestion.source)}${score} · ${when}`), element("p", "critique", spelledOut(suggestion.critique) || "(no words)"),
    spans, ...lost, ...missing,
  );
};

const checkedSpan = (span) => {
  const item = element("li");
  const check = page.opinion.checks.find((other) => other.start === span.start && other.end === span.end);
  const verdict = (words, correct) => {
    const control = button(words, () => change(withCheck(page.opinion, span.start, span.end, correct)));
    control.setAttribute("aria-pressed", String(check?.correct === correct));
    return control;
  };
  const take = button("mark it", () => {
    const marked = withMark(page.opinion, span.start, span.end, span.label);
    const at = marked.spans.findIndex((other) => other.start === span.start && other.end === span.end);
    change(marked.spans[at].reason ? marked : withReason(marked, at, span.reason));
  });
  item.append(
    element("b", CLASS[span.label], LABELS[span.label]), element("code", "", spelledOut(span.text)),
    element("span", "why", spelledOut(span.reason)), verdict("right", true), verdict("wrong", false), take,
  );
  return item;
};

const showSuggestion = () => {
  if (page.answer.suggestion) change(withSuggestionShown(page.opinion));
};

// ---- selecting words

const choose = (first, last, from) => {
  const end = page.words.length - 1;
  page.place = [Math.max(0, Math.min(first, end)), Math.max(0, Math.min(last, end))];
  page.from = from;
  drawTalk();
  byId("talk").querySelector(".here")?.scrollIntoView({ block: "nearest" });
};

// The moving end of the selection.
const moving = () => (page.place[0] < page.from ? page.place[0] : page.place[1]);

const move = (to, extend) => {
  if (!page.words.length) return;
  const at = Math.max(0, Math.min(to, page.words.length - 1));
  if (extend) choose(Math.min(at, page.from), Math.max(at, page.from), page.from);
  else choose(at, at, at);
};

// The first word of the previous or next sentence.
const sentence = (step) => {
  const begins = (at) => at === 0 || /[.!?。！？\n]/.test(textOf(page.words[at - 1][0], page.words[at][0]));
  let at = moving() + step;
  while (at > 0 && at < page.words.length - 1 && !begins(at)) at += step;
  return at;
};

const pointOf = (node, offset) => {
  const holder = node.nodeType === Node.TEXT_NODE ? node.parentElement : node.childNodes[offset] || node.lastChild;
  const piece = holder?.closest?.("[data-start]");
  if (!piece || !byId("talk").contains(piece)) return null;
  const start = Number(piece.dataset.start);
  if (node.nodeType !== Node.TEXT_NODE || piece.classList.contains("unseen")) return start;
  return pointAt(page.points, page.points[start] + offset);
};

const onSelected = () => {
  const selection = getSelection();
  if (!selection.rangeCount || !page.answer) return;
  const range = selection.getRangeAt(0);
  const start = pointOf(range.startContainer, range.startOffset);
  const end = pointOf(range.endContainer, range.endOffset);
  if (start === null && end === null) return;
  const [from, to] = [start ?? 0, end ?? page.points.length - 1];
  const place = snapped(page.words, Math.min(from, to), Math.max(from, to));
  if (!place) return;
  selection.removeAllRanges();
  const first = page.words.findIndex(([a]) => a === place[0]);
  const last = page.words.findIndex(([, b]) => b === place[1]);
  choose(first, last, first);
  byId("talk").focus({ preventScroll: true });
};

// ---- acts

const mark = (label) => {
  if (!page.words.length) return;
  const [start, end] = selectedRange();
  change(withMark(page.opinion, start, end, label));
  const at = page.opinion.spans.findIndex((span) => span.start === start && span.end === end);
  byId("marks").querySelectorAll("input")[at]?.focus();
};

const unmark = () => {
  const at = markAt(page.opinion, selectedRange()[0]);
  if (at >= 0) change(withoutMark(page.opinion, at));
};

const step = (by) => {
  const at = list.entries.findIndex((entry) => entry.key === page.key) + by;
  if (at >= 0 && at < list.entries.length) {
    list.select(at);
    byId("talk").focus();
  }
};

const nextUnmarked = () => {
  const at = nextThat(page.entries, page.entries.findIndex((entry) => entry.key === page.key), (entry) => !isMine(entry));
  if (at >= 0) open(page.entries[at].key);
};

const verdict = (score) => change({ ...page.opinion, score });

const edit = (id) => {
  byId(id).closest("details").open = true;
  byId(id).focus();
};

const KEYS = {
  g: () => mark(1), p: () => mark(-1), i: () => mark(0), x: unmark, Delete: unmark, u: undo,
  c: () => edit("critique"), m: () => edit("missing"), b: () => edit("corrected"),
  s: showSuggestion,
  j: () => step(1), k: () => step(-1), n: nextUnmarked,
  "?": () => byId("help").toggleAttribute("open"),
  0: () => verdict(null), ...Object.fromEntries(VERDICTS.map((score, at) => [at + 1, () => verdict(score)])),
};

const MOVES = {
  ArrowRight: (extend) => move(moving() + 1, extend), ArrowLeft: (extend) => move(moving() - 1, extend),
  ArrowDown: (extend) => move(sentence(1), extend), ArrowUp: (extend) => move(sentence(-1), extend),
  Home: (extend) => move(0, extend), End: (extend) => move(page.words.length - 1, extend),
};

const onKey = (event) => {
  if (!page.answer || event.isComposing) return;
  if (isTyping(event.target)) {
    const leaves = event.key === "Escape" || (event.key === "Enter" && event.target.matches("#marks input"));
    if (leaves) {
      event.preventDefault();
      byId("talk").focus(); // the field's own change event saves it
    }
    return;
  }
  if ((event.ctrlKey || event.metaKey) && event.key === "z") {
    event.preventDefault();
    undo();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const inTalk = event.target === byId("talk");
  if (inTalk && MOVES[event.key]) {
    event.preventDefault();
    MOVES[event.key](event.shiftKey);
  } else if (inTalk && event.key === "Enter") {
    event.preventDefault();
    step(1);
  } else if (byId("single").checked && KEYS[event.key] && !event.target.matches("[type=radio]")) {
    event.preventDefault();
    KEYS[event.key]();
  }
};

const start = async () => {
  openControls();
  const name = byId("annotator");
  name.value = page.annotator;
  name.addEventListener("change", async () => {
    page.annotator = name.value.trim();
    localStorage.setItem(NAME, page.annotator);
    if (page.key) await open(page.key, false);
  });
  byId("which").addEventListener("change", showProgress);
  byId("critique").addEventListener("change", (event) => change({ ...page.opinion, critique: event.target.value.trim() }));
  byId("corrected").addEventListener("change", (event) =>
    change({ ...page.opinion, corrected: event.target.value.trim() }));
  byId("missing").addEventListener("change", (event) => {
    const lines = event.target.value.split("\n").map((line) => line.trim());
    change({ ...page.opinion, omissions: lines.filter(Boolean) });
  });
  document.querySelectorAll("[data-label]").forEach((control) =>
    control.addEventListener("click", () => mark(Number(control.dataset.label))));
  byId("unmark").addEventListener("click", unmark);
  byId("undo").addEventListener("click", undo);
  byId("next").addEventListener("click", () => step(1));
  byId("back").addEventListener("click", () => step(-1));
  byId("unmarked").addEventListener("click", nextUnmarked);
  byId("talk").addEventListener("pointerup", () => setTimeout(onSelected));
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => location.hash.slice(1) !== page.key && open(location.hash.slice(1), false));
  history.replaceState(null, "", `/${location.hash}`); // the cookie has the token now
  outbox.restore();
  await refresh();
  const linked = page.entries.find((entry) => entry.key === location.hash.slice(1));
  const first = linked || page.entries.find((entry) => !isMine(entry)) || page.entries[0];
  await open(first.key);
  setInterval(() => refresh().catch(() => {}), 5000);
};

start();
