// The page of a run: charts, the list of samples with its filters, one sample, and its address.
import { minus, shortTitles } from "./text.mjs";
import { LongList, button, byId, element, embeddedData, isTyping, openControls } from "./dom.mjs";
import { FILTERS, addressOf, matching, nameOf, ordered, overSteps, readAddress, recurring } from "./signals.mjs";
import { startCharts } from "./charts.mjs";
import { diffElement, legendOf, showSample, textOf } from "./sample.mjs";
import { startBeside } from "./beside.mjs";

// ---- the address: every part of the page stores its state under names of its own

const address = readAddress(location.hash);
const keep = (part) => history.replaceState(null, "", addressOf(Object.assign(address, part)));

// ---- the source of samples: data in the page, or its server

const inPage = ({ samples, comparisons }) => {
  const texts = samples.map((sample) =>
    [textOf(sample), ...sample.prompt.map((turn) => turn.content), ...sample.critique.map(([text]) => text), sample.id]
      .join("\n").toLowerCase());
  return {
    entries: samples,
    signals: new Set(samples.flatMap((sample) => Object.keys(sample.rows))),
    comparisons: async () => comparisons,
    sample: async (key) => samples.find((sample) => sample.key === key),
    search: async (words) => samples.filter((_, at) => texts[at].includes(words.toLowerCase())).map((sample) => sample.key),
  };
};

const ask = async (path) => {
  const response = await fetch(path);
  const content = await response.json().catch(() => ({ error: `${path}: ${response.status}` }));
  if (content.error) throw new Error(content.error);
  return content;
};

const onServer = () => ({
  entries: [],
  signals: new Set(),
  stamp: "",
  comparisons: async () => (await ask("/api/comparisons")).items,
  sample: (key) => ask(`/api/samples?key=${encodeURIComponent(key)}`),
  search: async (words) => (await ask(`/api/search?q=${encodeURIComponent(words)}`)).keys,
  // Fetch the entries that were written since.
  async more() {
    const update = await ask(`/api/entries?have=${this.entries.length}`);
    if (update.restarted) this.entries = [];
    this.entries = [...this.entries, ...update.entries];
    this.signals = new Set(update.signals);
    const changed = this.stamp !== "" && this.stamp !== update.stamp;
    this.stamp = update.stamp;
    return { added: update.entries.length > 0 || update.restarted, changed };
  },
});

// ---- the list

const outcome = (entry) => {
  if (entry.failed) return "▲ critique failed";
  const score = entry.score === null ? "" : ` · score ${minus(entry.score)}`;
  const probe = entry.probe ? " · probe" : "";
  const lost = entry.lost_count ? ` · ${entry.lost_count} lost` : "";
  const wrong = entry.wrong ? ` · ▲ ${entry.wrong} wrong` : "";
  return `${entry.good} good, ${entry.poor} poor${score}${lost}${wrong}${probe}`;
};

const startViewer = (source, signals) => {
  const form = byId("filters");
  const fields = form.elements;
  const article = byId("sample");
  const state = { sample: "", token: "", by: "delta", bar: "advantage", q: "", sort: "" };
  let hits = null;
  let titles = String;
  let shown = null; // the sample on the page, with functions to change it

  const list = new LongList(byId("list"), 72, {
    show: (entry) => [
      element("b", "", titles(entry.title)), element("span", "answer-line", entry.answer || "(empty answer)"),
      element("span", "", `${entry.method} · step ${entry.step} · ${outcome(entry)}`),
    ],
    choose: (at) => open(list.entries[at].key),
  });

  const remember = () => keep(state);

  const colour = () => {
    for (const [name, signal] of [["by", fields.by.value], ["bar", fields.bar.value]]) {
      state[name] = signal;
      byId(`range-${name}`).textContent = shown && signal ? legendOf(shown.sample, signal) : "";
    }
    shown?.colour(state.by, state.bar);
    byId("signal-words").textContent = signals[state.by] ? `${nameOf(state.by)}: ${signals[state.by]}.` : "";
  };

  const open = async (key, token = "") => {
    state.sample = key;
    state.token = token;
    remember();
    const sample = await source.sample(key);
    if (state.sample !== key || !sample) return;
    const drawn = showSample(sample, article, (index) => {
      state.token = index;
      remember();
    });
    shown = { sample, ...drawn };
    showSteps(sample, drawn.versions);
    colour();
    if (token !== "") drawn.token(Number(token));
  };

  // Show the answers to the same prompt in other steps, as differences by words.
  const showSteps = (sample, box) => {
    const steps = overSteps(source.entries, sample);
    if (steps.length < 2) return;
    const fold = element("details");
    const list = element("ol", "steps-of");
    const only = button("list only this prompt", () => {
      fields.prompt.value = sample.id;
      refresh();
      byId("list").focus();
    });
    fold.append(element("summary", "", `This prompt over ${steps.length} steps, the change of its answer by words`), only, list);
    box.append(fold);
    fold.addEventListener("toggle", async () => {
      if (state.over !== fold.open) keep({ over: (state.over = fold.open) });
      if (!fold.open || list.children.length) return;
      const answers = await Promise.all(steps.map((entry) => (entry.key === sample.key ? sample : source.sample(entry.key))));
      list.replaceChildren(...answers.map((answer, at) => {
        const item = element("li");
        item.setAttribute("aria-current", String(answer.key === sample.key));
        const score = answer.score === null ? "" : ` · score ${minus(answer.score)}`;
        const before = at ? textOf(answers[at - 1]) : textOf(answer);
        const shownText = at ? diffElement(before, textOf(answer)) : element("pre", "", before);
        item.append(button(`step ${answer.step}${score}`, () => open(answer.key)), shownText);
        return item;
      }));
    });
    fold.open = state.over ?? sample.probe;
  };

  const filterValues = () => {
    const values = {};
    for (const name of FILTERS.filter((filter) => fields[filter])) {
      values[name] = fields[name].type === "checkbox" ? fields[name].checked : fields[name].value;
    }
    return values;
  };

  const refresh = (keep = true) => {
    Object.assign(state, filterValues(), { sort: fields.sort.value, q: fields.q.value.trim() });
    const matches = ordered(matching(source.entries, filterValues(), hits), state.sort);
    const at = matches.findIndex((entry) => entry.key === state.sample);
    list.fill(matches, at);
    byId("found").textContent = `${matches.length} of ${source.entries.length}`;
    byId("no-samples")?.toggleAttribute("hidden", source.entries.length > 0);
    byId("sample-box").hidden = !source.entries.length;
    if (matches.length && (at < 0 || !keep)) list.select(Math.max(at, 0));
    if (!matches.length) {
      shown = null;
      article.replaceChildren(element("p", "absent", "No sample matches."));
    }
    remember();
  };

  const offer = (select, values, name = String) => {
    const present = new Set([...select.options].map((option) => option.value));
    select.append(...values.filter((value) => !present.has(String(value))).map((value) => new Option(name(value), value)));
  };
  const offerAll = () => {
    const prompts = new Map(recurring(source.entries));
    titles = shortTitles(source.entries.map((entry) => entry.title));
    const named = new Map(source.entries.map((entry) => [entry.id, titles(entry.title).slice(0, 60)]));
    offer(fields.prompt, [...prompts.keys()], (id) => (prompts.get(id) ? `probe: ${named.get(id)}` : named.get(id)));
    fields.probe.closest("label").hidden = ![...prompts.values()].some(Boolean);
    for (const [select, first] of [[fields.by, "delta"], [fields.bar, "advantage"]]) {
      const wasFilled = select.options.length > 1;
      offer(select, Object.keys(signals).filter((signal) => source.signals.has(signal)), nameOf);
      if (!wasFilled) select.value = source.signals.has(first) ? first : select.options[0]?.value ?? "";
    }
    offer(fields.method, [...new Set(source.entries.map((entry) => entry.method))]);
    offer(fields.step, [...new Set(source.entries.map((entry) => entry.step))].sort((a, b) => a - b));
  };

  let search = 0;
  const find = async () => {
    const words = fields.q.value.trim();
    const number = (search += 1);
    const keys = words ? await source.search(words) : null;
    if (number !== search) return;
    hits = keys && new Set(keys);
    refresh();
  };

  for (const select of [fields.by, fields.bar]) {
    select.addEventListener("change", (event) => {
      event.stopPropagation();
      colour();
      remember();
    });
  }
  form.addEventListener("change", (event) => event.target !== fields.q && refresh());
  form.addEventListener("input", (event) => event.target === fields.q && find());
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => {
    fields.by.value = state.by;
    fields.bar.value = state.bar;
    find();
  }));

  const readState = async () => {
    if (address.over) state.over = address.over === "1";
    for (const name of [...FILTERS, "sort", "q", "by", "bar"]) {
      const field = fields[name];
      if (!field || address[name] === undefined) continue;
      if (field.type === "checkbox") field.checked = address[name] === "1";
      else field.value = address[name];
    }
    const { sample = "", token = "" } = address;
    state.sample = sample;
    if (fields.q.value) hits = new Set(await source.search(fields.q.value));
    refresh();
    if (source.entries.some((entry) => entry.key === sample)) await open(sample, token);
  };

  document.addEventListener("keydown", (event) => {
    if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      fields.q.focus();
    } else if (event.key === "j" || event.key === "k") list.select(Math.max(0, list.current + (event.key === "j" ? 1 : -1)));
  });
  offerAll();
  return { readState, refresh, offerAll };
};

// ---- a run in progress: sections that have changed are replaced

const fetchPage = () =>
  new Promise((done, fail) => {
    const request = new XMLHttpRequest(); // its document is inert: no script of it runs
    request.responseType = "document";
    request.onload = () => (request.status === 200 && request.response ? done(request.response) : fail(new Error(request.status)));
    request.onerror = () => fail(new Error("the server does not answer"));
    request.open("GET", "/");
    request.send();
  });

const takeSections = async () => {
  const current = await fetchPage();
  for (const section of document.querySelectorAll("main > section")) {
    const fresh = current.getElementById(section.id);
    if (section.classList.contains("kept") && fresh?.querySelector("form") && !section.querySelector("form")) location.reload();
    if (!fresh || section.classList.contains("kept") || section.contains(document.activeElement)) continue;
    const open = [...section.querySelectorAll("details")].map((fold) => fold.open);
    const replacement = document.importNode(fresh, true);
    replacement.querySelectorAll("details").forEach((fold, at) => (fold.open = open[at] ?? fold.open));
    section.replaceWith(replacement);
    startCharts(replacement);
  }
};

const startLive = async (source, viewer, beside) => {
  const status = byId("live");
  const look = async () => {
    try {
      const { added, changed } = await source.more();
      if (added) {
        viewer.offerAll();
        viewer.refresh();
      }
      if (changed) {
        await takeSections(); // which empties the box of the largest changes
        await beside();
      }
      status.textContent = "";
    } catch (error) {
      status.textContent = `▲ Not up to date: ${error.message}`;
    }
    setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
};

const startView = async () => {
  openControls();
  startCharts(document);
  const data = embeddedData("data");
  const source = data.live ? onServer() : inPage(data);
  if (data.live) {
    history.replaceState(null, "", `/${location.hash}`); // the cookie has the token now
    await source.more();
  }
  const viewer = byId("filters") && startViewer(source, data.signals);
  await viewer?.readState();
  const beside = await startBeside(source.comparisons, address, keep);
  if (data.live) startLive(source, viewer, beside);
};

startView();
