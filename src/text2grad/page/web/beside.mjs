// Before and after: the answers of all policies to a held-out prompt side by side, and what one changed of another's.
import { minus } from "./text.mjs";
import { LongList, byId, element } from "./dom.mjs";
import { diffElement } from "./sample.mjs";

const answerOf = (item, name) => item.answers.find((answer) => answer.name === name);

const mainScore = (answer) => Object.values(answer?.scores || {}).find((value) => value !== null) ?? null;

const OUTCOMES = {
  better: (before, after) => mainScore(after) > mainScore(before),
  worse: (before, after) => mainScore(after) < mainScore(before),
  other: (before, after) => before.response !== after.response,
};

// The items with these words in them whose answers by two policies differ as wanted.
export const pairsOf = (items, { words, outcome, from, to }) => {
  const wanted = words.toLowerCase();
  return items.filter((item) => {
    const [before, after] = [answerOf(item, from), answerOf(item, to)];
    if (outcome && !(before && after && OUTCOMES[outcome](before, after))) return false;
    const texts = [item.id, ...item.prompt.map((turn) => turn.content), ...item.answers.map((answer) => answer.response)];
    return !wanted || texts.join("\n").toLowerCase().includes(wanted);
  });
};

export const scoreWords = (scores) => Object.entries(scores).filter(([, value]) => value !== null)
  .map(([name, value]) => (value === 0 || value === 1 ? `${value ? "✓" : "✗"} ${name}` : `${name} ${minus(Number(value.toPrecision(3)))}`)).join(" · ");

// item -> what the article shows: prompt, reference, both policies with the difference, and all others.
const pairOf = (item, { from, to }) => {
  const prompt = element("details", "prompt");
  prompt.append(element("summary", "", "Prompt"), ...item.prompt.flatMap(({ role, content }) => [element("p", "role", role), element("pre", "", content)]));
  prompt.open = true;
  const reference = element("details", "prompt");
  reference.append(element("summary", "", "Reference answer"), element("pre", "", item.reference));
  const before = answerOf(item, from);
  const column = (answer) => {
    const box = element("div", "answer");
    box.append(element("h4", "", `${answer.name} `), element("p", "hint", scoreWords(answer.scores)));
    const text = answer.response || "(empty answer)";
    box.append(before && answer !== before ? diffElement(before.response, answer.response) : element("pre", "", text));
    return box;
  };
  const first = [before, answerOf(item, to)].filter((answer, at, both) => answer && both.indexOf(answer) === at);
  const answers = element("div", "answers");
  answers.append(...first.map(column), ...item.answers.filter((answer) => !first.includes(answer)).map(column));
  const heading = element("h3", "", [item.id, item.task].filter(Boolean).join(" · "));
  return [heading, prompt, ...(item.reference ? [reference] : []), answers];
};

// load: () -> the items; keep: what of the address is ours. Returns a way to look again for items.
export const startBeside = async (load, address, keep) => {
  const form = byId("pairs");
  if (!form) return () => {};
  const fields = form.elements;
  let items = [];
  const wanted = () => ({ words: fields.words.value.trim(), outcome: fields.outcome.value, from: fields.from.value, to: fields.to.value });
  const list = new LongList(byId("pair-list"), 56, {
    show: (item) => [
      element("b", "", item.id),
      element("span", "", [fields.from.value, fields.to.value].map((name) => scoreWords(answerOf(item, name)?.scores || {}) || "–").join(" → ")),
    ],
    choose: (at) => open(list.entries[at]),
  });
  const open = (item) => {
    byId("pair").replaceChildren(...pairOf(item, wanted()));
    keep({ pair: item.id });
  };
  const refresh = (id) => {
    const found = pairsOf(items, wanted());
    const at = Math.max(0, found.findIndex((item) => item.id === id));
    list.fill(found, found.length ? at : -1);
    byId("pairs-found").textContent = `${found.length} of ${items.length}`;
    if (found.length) byId("pair").replaceChildren(...pairOf(found[at], wanted()));
    else byId("pair").replaceChildren(element("p", "absent", "No prompt is like that."));
  };
  const changed = () => {
    const { words, outcome, from, to } = wanted();
    keep({ words, outcome, from, to });
    refresh(list.entries[list.current]?.id);
  };
  const look = async () => {
    items = await load();
    const names = [...new Set(items.flatMap((item) => item.answers.map((answer) => answer.name)))];
    const chosen = { from: fields.from.value || address.from || names[0], to: fields.to.value || address.to || names.find((name) => name.endsWith("text2grad")) || names.at(-1) };
    for (const name of ["from", "to"]) {
      fields[name].replaceChildren(...names.map((each) => new Option(each, each)));
      fields[name].value = names.includes(chosen[name]) ? chosen[name] : names[0];
    }
    refresh(list.entries[list.current]?.id ?? address.pair);
  };
  fields.words.value = address.words || "";
  fields.outcome.value = address.outcome || "";
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  await look();
  return look;
};
