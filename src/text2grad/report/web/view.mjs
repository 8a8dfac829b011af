// The page of a run: charts, the list of samples with its filters, one sample, and its address.
import { minus } from "./text.mjs";
import { LongList, byId, element, embeddedData, isTyping } from "./dom.mjs";
import { FILTERS, addressOf, matching, nameOf, ordered, readAddress } from "./signals.mjs";
import { startCharts } from "./charts.mjs";
import { diffElement, legendOf, showSample, textOf } from "./sample.mjs";

// ---- where samples come from: the page itself, or the server that it came from

const inPage = ({ samples }) => {
  const texts = samples.map((sample) =>
    [textOf(sample), ...sample.prompt.map((turn) => turn.content), ...sample.critique.map(([text]) => text), sample.id]
      .join("\n").toLowerCase());
  return {
    entries: samples,
    sample: async (key) => samples.find((sample) => sample.key === key),
    search: async (words) => samples.filter((_, at) => texts[at].includes(words.toLowerCase())).map((sample) => sample.key),
  };
};

const ask = async (path) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
};

const onServer = () => ({
  entries: [],
  stamp: "",
  sample: (key) => ask(`/api/samples?key=${encodeURIComponent(key)}`),
  search: async (words) => (await ask(`/api/search?q=${encodeURIComponent(words)}`)).keys,
  // What was written since; true if there is something.
  async more() {
    const found = await ask(`/api/entries?have=${this.entries.length}`);
    if (found.restarted) this.entries = [];
    this.entries = [...this.entries, ...found.entries];
    const changed = this.stamp !== "" && this.stamp !== found.stamp;
    this.stamp = found.stamp;
    return { added: found.entries.length > 0 || found.restarted, changed };
  },
});

// ---- the list

const outcome = (entry) => {
  if (entry.failed) return "▲ critique failed";
  const score = entry.score === null ? "" : ` · score ${minus(entry.score)}`;
  const lost = entry.lost_count ? ` · ${entry.lost_count} lost` : "";
  const wrong = entry.wrong ? ` · ▲ ${entry.wrong} wrong` : "";
  return `${entry.good} good, ${entry.poor} poor${score}${lost}${wrong}`;
};

const startViewer = (source, signals) => {
  const form = byId("filters");
  const fields = form.elements;
  const article = byId("sample");
  const state = { sample: "", token: "", by: "delta", bar: "advantage", q: "", sort: "", prompt: "" };
  let hits = null;
  let shown = null; // the sample in sight, and how to change it

  const list = new LongList(byId("list"), 72, {
    show: (entry) => [
      element("b", "", entry.id), element("span", "", `${entry.method} · step ${entry.step} · ${entry.length} tokens`),
      element("span", "", outcome(entry)),
    ],
    choose: (at) => open(list.entries[at].key),
  });

  const remember = () => history.replaceState(null, "", addressOf(state));

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
    showVersions(sample, drawn.versions);
    colour();
    if (token !== "") drawn.token(Number(token));
  };

  // The same prompt in other samples: what changed in the answer, and a way to follow it.
  const showVersions = (sample, box) => {
    const others = source.entries.filter((entry) => entry.id === sample.id && entry.key !== sample.key);
    if (!sample.id || !others.length) return;
    const pick = element("select");
    const label = element("label", "", `Same prompt, ${others.length} other answer${others.length > 1 ? "s" : ""}: compare with `);
    pick.append(element("option", "", "–"));
    others.forEach((entry) => {
      const option = element("option", "", `step ${entry.step} · ${entry.method}${entry.score === null ? "" : ` · score ${minus(entry.score)}`}`);
      option.value = entry.key;
      pick.append(option);
    });
    const follow = element("button", "", state.prompt ? "all prompts" : "list only these");
    follow.type = "button";
    follow.addEventListener("click", () => {
      state.prompt = state.prompt ? "" : sample.id;
      refresh();
      byId("list").focus();
    });
    const place = element("div");
    pick.addEventListener("change", async () => {
      const other = pick.value === "–" ? null : await source.sample(pick.value);
      place.replaceChildren(...(other ? [diffElement(textOf(other), textOf(sample))] : []));
    });
    label.append(pick);
    box.append(label, " ", follow, place);
  };

  const wanted = () => {
    const values = { prompt: state.prompt };
    for (const name of FILTERS.filter((each) => fields[each])) {
      values[name] = fields[name].type === "checkbox" ? fields[name].checked : fields[name].value;
    }
    return values;
  };

  const refresh = (keep = true) => {
    Object.assign(state, wanted(), { sort: fields.sort.value, q: fields.q.value.trim() });
    const found = ordered(matching(source.entries, wanted(), hits), state.sort);
    const at = found.findIndex((entry) => entry.key === state.sample);
    list.fill(found, at);
    const only = state.prompt ? ` of prompt ${state.prompt}` : "";
    byId("found").textContent = `${found.length} of ${source.entries.length}${only}`;
    if (found.length && (at < 0 || !keep)) list.select(Math.max(at, 0));
    if (!found.length) {
      shown = null;
      article.replaceChildren(element("p", "absent", source.entries.length ? "No sample is like that." : "No samples yet: text2grad train writes them."));
    }
    remember();
  };

  const offer = (select, values) => {
    const kept = select.value;
    const known = new Set([...select.options].map((option) => option.value));
    values.filter((value) => !known.has(String(value))).forEach((value) => {
      const option = element("option", "", String(value));
      option.value = String(value);
      select.append(option);
    });
    select.value = kept;
  };
  const offerAll = () => {
    offer(fields.method, [...new Set(source.entries.map((entry) => entry.method))]);
    offer(fields.step, [...new Set(source.entries.map((entry) => entry.step))].sort((a, b) => a - b));
  };

  let search = 0;
  const find = async () => {
    const words = fields.q.value.trim();
    const own = (search += 1);
    const keys = words ? await source.search(words) : null;
    if (own !== search) return;
    hits = keys && new Set(keys);
    refresh();
  };

  for (const select of [fields.by, fields.bar]) {
    Object.keys(signals).forEach((signal) => {
      const option = element("option", "", nameOf(signal));
      option.value = signal;
      select.append(option);
    });
    select.addEventListener("change", (event) => {
      event.stopPropagation();
      colour();
      remember();
    });
  }
  fields.by.value = "delta";
  fields.bar.value = "advantage";
  form.addEventListener("change", (event) => event.target !== fields.q && refresh());
  form.addEventListener("input", (event) => event.target === fields.q && find());
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => {
    state.prompt = "";
    fields.by.value = state.by;
    fields.bar.value = state.bar;
    find();
  }));

  const readState = async () => {
    const address = readAddress(location.hash);
    state.prompt = address.prompt || "";
    for (const name of [...FILTERS, "sort", "q", "by", "bar"]) {
      const field = fields[name];
      if (!field || address[name] === undefined) continue;
      if (field.type === "checkbox") field.checked = address[name] === "1";
      else field.value = address[name];
    }
    state.sample = address.sample || "";
    const token = address.token ?? "";
    if (fields.q.value) hits = new Set(await source.search(fields.q.value));
    refresh();
    if (source.entries.some((entry) => entry.key === address.sample)) await open(address.sample, token);
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

// ---- a run that goes on: what has changed of the page is put in the place of what was there

const pageNow = () =>
  new Promise((done, fail) => {
    const request = new XMLHttpRequest(); // its document is inert: no script of it runs
    request.responseType = "document";
    request.onload = () => (request.status === 200 && request.response ? done(request.response) : fail(new Error(request.status)));
    request.onerror = () => fail(new Error("the server is not there"));
    request.open("GET", "/");
    request.send();
  });

const takeSections = async () => {
  const now = await pageNow();
  for (const section of document.querySelectorAll("main > section, header > .facts, header > .headline")) {
    const fresh = section.id ? now.getElementById(section.id) : now.querySelector(`header > .${section.className}`);
    if (!fresh || section.id === "samples" || section.contains(document.activeElement)) continue;
    const open = [...section.querySelectorAll("details")].map((fold) => fold.open);
    const taken = document.importNode(fresh, true);
    taken.querySelectorAll("details").forEach((fold, at) => (fold.open = open[at] ?? fold.open));
    section.replaceWith(taken);
    startCharts(taken);
  }
};

const startLive = async (source, viewer) => {
  const told = byId("live");
  const look = async () => {
    try {
      const { added, changed } = await source.more();
      if (added) {
        viewer.offerAll();
        viewer.refresh();
      }
      if (changed) await takeSections();
      told.textContent = "";
    } catch (error) {
      told.textContent = `▲ Not up to date: ${error.message}`;
    }
    setTimeout(look, 2000);
  };
  await source.more();
  viewer.offerAll();
  await viewer.readState();
  setTimeout(look, 2000);
};

const startView = () => {
  startCharts(document);
  const data = embeddedData("data");
  if (!data) return;
  const source = data.live ? onServer() : inPage(data);
  const viewer = startViewer(source, data.signals);
  if (!data.live) {
    viewer.readState();
    return;
  }
  history.replaceState(null, "", `/${location.hash}`); // the cookie has the token now
  startLive(source, viewer);
};

startView();
