// Before and after: the answers of all policies to a held-out prompt, side by side, with their differences.
import { cutAt, minus, shortTitles } from "./text.mjs";
import { LongList, byId, element } from "./dom.mjs";
import { diffOf } from "./diff.mjs";
import { diffElement, diffPart } from "./sample.mjs";

const MOST_CHARACTERS = 400; // shown of an answer among the largest changes

const answerOf = (item, name) => item.answers.find((answer) => answer.name === name);

const mainScore = (answer) => Object.values(answer?.scores || {}).find((value) => value !== null) ?? null;

const OUTCOMES = {
  better: (before, after) => mainScore(after) > mainScore(before),
  worse: (before, after) => mainScore(after) < mainScore(before),
  other: (before, after) => before.response !== after.response,
};

// The items that contain `words`, and whose answers by two policies have this `outcome`.
export const pairsOf = (items, { words, outcome, from, to }) => {
  const text = words.toLowerCase();
  return items.filter((item) => {
    const [before, after] = [answerOf(item, from), answerOf(item, to)];
    if (outcome && !(before && after && OUTCOMES[outcome](before, after))) return false;
    const texts = [item.id, ...item.prompt.map((turn) => turn.content), ...item.answers.map((answer) => answer.response)];
    return !text || texts.join("\n").toLowerCase().includes(text);
  });
};

// The items whose answers differ, those with the largest change of the main score first.
export const largestChanges = (items, from, to, most = 3) => {
  const size = (item) => Math.abs((mainScore(answerOf(item, to)) ?? 0) - (mainScore(answerOf(item, from)) ?? 0));
  return pairsOf(items, { words: "", outcome: "other", from, to }).sort((a, b) => size(b) - size(a)).slice(0, most);
};

const figureOf = (value) => (value === null ? "–" : typeof value === "boolean" ? (value ? "✓" : "✗") : minus(Number(value.toPrecision(3))));

export const scoreWords = (scores) => Object.entries(scores).filter(([, value]) => value !== null)
  .map(([name, value]) => (typeof value === "boolean" ? `${figureOf(value)} ${name}` : `${name} ${figureOf(value)}`)).join(" · ");

const namesOf = (items) => [...new Set(items.flatMap((item) => item.answers.map((answer) => answer.name)))];

// One side of a comparison, with the words marked that the other side lacks (kind `ownKind`).
const sideElement = (answer, title, parts, ownKind) => {
  const box = element("div", "answer");
  box.append(element("h4", "", title), element("p", "hint", scoreWords(answer.scores)));
  const body = element("pre", "diff");
  let remaining = MOST_CHARACTERS;
  for (const [kind, text] of parts.filter(([kind]) => kind === "same" || kind === ownKind)) {
    body.append(diffPart([kind, remaining > 0 ? cutAt(text, remaining) : ""]));
    remaining -= text.length;
  }
  if (!answer.response.trim()) body.replaceChildren(element("span", "hint", "(empty answer)"));
  box.append(body);
  return box;
};

// The first policy, and the last one that answered the same prompts.
export const endsOf = (items) => {
  const [from] = namesOf(items);
  const shared = items.filter((item) => answerOf(item, from));
  return [from, namesOf(shared).at(-1)];
};

const drawChanges = (items) => {
  const [from, to] = endsOf(items);
  const changes = largestChanges(items, from, to);
  const titles = shortTitles(items.map((item) => item.title));
  const boxes = changes.map((item) => {
    const [before, after] = [answerOf(item, from), answerOf(item, to)];
    const parts = diffOf(before.response.trim(), after.response.trim());
    const box = element("div", "change");
    const answers = element("div", "answers");
    answers.append(sideElement(before, `before: ${from}`, parts, "gone"), sideElement(after, `after: ${to}`, parts, "added"));
    box.append(element("p", "change-prompt", cutAt(titles(item.title), 120)), answers);
    return box;
  });
  const heading = boxes.length ? [element("h3", "", boxes.length > 1 ? `The ${boxes.length} largest changes` : "The largest change")] : [];
  byId("changes").replaceChildren(...heading, ...boxes);
};

// The article of an item: prompt, reference, two policies with their difference, then the other policies.
const pairOf = (item, title, { from, to }) => {
  const prompt = element("details", "prompt");
  prompt.append(element("summary", "", "Prompt"), ...item.prompt.flatMap(({ role, content }) => [element("p", "role", role), element("pre", "", content)]));
  prompt.open = true;
  const reference = element("details", "prompt");
  reference.append(element("summary", "", "Reference answer"), element("pre", "", item.reference));
  const before = answerOf(item, from);
  const column = (answer) => {
    const box = element("div", "answer");
    box.append(element("h4", "", `${answer.name} `), element("p", "hint", scoreWords(answer.scores)));
    const response = answer.response.trim();
    if (before && answer !== before && response) box.append(diffElement(before.response.trim(), response));
    else box.append(element("pre", "", response || "(empty answer)"));
    return box;
  };
  const first = [before, answerOf(item, to)].filter((answer, at, both) => answer && both.indexOf(answer) === at);
  const answers = element("div", "answers");
  answers.append(...first.map(column), ...item.answers.filter((answer) => !first.includes(answer)).map(column));
  const heading = element("h3", "", cutAt(title, 80));
  const source = element("p", "hint", [item.task, item.id].filter(Boolean).join(" · "));
  return [heading, prompt, ...(item.reference ? [reference] : []), answers, source];
};

// `load` fetches the items; `keep` stores our part of the address. Returns a function that loads the items again.
export const startBeside = async (load, address, keep) => {
  const form = byId("pairs");
  if (!form) return () => {};
  const fields = form.elements;
  let items = [];
  let titles = String;
  const choices = () => ({ words: fields.words.value.trim(), outcome: fields.outcome.value, from: fields.from.value, to: fields.to.value });
  const list = new LongList(byId("pair-list"), 72, {
    show: (item) => [
      element("b", "", titles(item.title)),
      element("span", "answer-line", cutAt(answerOf(item, fields.to.value)?.response.trim() || "(empty answer)", 120)),
      element("span", "", [fields.from.value, fields.to.value].map((name) => figureOf(mainScore(answerOf(item, name)))).join(" → ")),
    ],
    choose: (at) => open(list.entries[at]),
  });
  const open = (item) => {
    byId("pair").replaceChildren(...pairOf(item, titles(item.title), choices()));
    keep({ pair: item.id });
  };
  const refresh = (id) => {
    const matches = pairsOf(items, choices());
    const at = Math.max(0, matches.findIndex((item) => item.id === id));
    list.fill(matches, matches.length ? at : -1);
    byId("pairs-found").textContent = `${matches.length} of ${items.length} prompts`;
    if (matches.length) byId("pair").replaceChildren(...pairOf(matches[at], titles(matches[at].title), choices()));
    else byId("pair").replaceChildren(element("p", "absent", "No prompt matches."));
  };
  const changed = () => {
    const { words, outcome, from, to } = choices();
    keep({ words, outcome, from, to });
    refresh(list.entries[list.current]?.id);
  };
  const look = async () => {
    items = await load();
    titles = shortTitles(items.map((item) => item.title));
    const names = namesOf(items);
    const [first, last] = endsOf(items);
    const selected = { from: fields.from.value || address.from || first, to: fields.to.value || address.to || last };
    for (const name of ["from", "to"]) {
      fields[name].replaceChildren(...names.map((policy) => new Option(policy, policy)));
      fields[name].value = names.includes(selected[name]) ? selected[name] : names[0];
    }
    drawChanges(items);
    refresh(list.entries[list.current]?.id ?? address.pair);
  };
  fields.words.value = address.words || "";
  fields.outcome.value = address.outcome || "";
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  await look();
  return look;
};
