"use strict";
// Text only ever enters the page through textContent: nothing a model wrote is parsed as HTML.

const element = (tag, className = "", text = null) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
};

const minus = (text) => text.replaceAll("-", "−");

// ---- charts: the value under the pointer, or under the guide moved by arrow keys

const exact = (value) => (value === null ? "–" : minus(String(Number(value.toPrecision(4)))));

const readChart = (svg) => {
  const { scale, unit, curves } = JSON.parse(svg.dataset.hover);
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  if (!steps.length) return;
  const output = svg.parentElement.querySelector("output");
  const guide = svg.querySelector(".guide");
  const atRest = output.textContent;
  let at = steps.length;

  const show = (index) => {
    at = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[at];
    const share = scale.high > scale.low ? (step - scale.low) / (scale.high - scale.low) : 0;
    const x = scale.left + share * (scale.right - scale.left);
    guide.setAttribute("x1", x);
    guide.setAttribute("x2", x);
    svg.classList.add("reading");
    const values = curves.map((curve) => [curve.name, curve.values[curve.steps.indexOf(step)]]);
    const known = values.filter(([, value]) => value !== undefined);
    output.textContent = `${unit} ${step}: ` + known.map(([name, value]) => `${name} ${exact(value)}`).join(" · ");
  };
  const leave = () => {
    svg.classList.remove("reading");
    output.textContent = atRest;
    at = steps.length;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const step = scale.low + ((x - scale.left) / (scale.right - scale.left)) * (scale.high - scale.low);
    const distances = steps.map((known) => Math.abs(known - step));
    show(distances.indexOf(Math.min(...distances)));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const moved = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (moved === undefined) return;
    event.preventDefault();
    show(moved);
  });
};

document.querySelectorAll("svg[data-hover]").forEach(readChart);

// ---- the token strip: one column per token, broken into lines that fit the width

const HEAD = 76; // pixels for the names of the rows, as in page.css
const NAMES = { kl: "KL" };
const nameOf = (row) => NAMES[row] || row;

const short = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  const digits =
    size >= 100 ? size.toFixed(0)
    : size >= 10 ? size.toFixed(1)
    : size >= 0.00995 ? size.toFixed(2).replace(/^0/, "")
    : size.toExponential(0);
  return minus((value > 0 ? "+" : "-") + digits);
};

const signOf = (value) => (value > 0 ? "good" : value < 0 ? "poor" : "zero");

const widthOf = (token) => {
  const units = Array.from(token).reduce((sum, c) => sum + (c.codePointAt(0) > 0x2e7f ? 2 : 1), 0);
  return Math.min(170, Math.max(46, Math.ceil(units * 7.6) + 12));
};

const breakLines = (tokens, room) => {
  const lines = [[]];
  let used = 0;
  tokens.forEach((token, index) => {
    const width = widthOf(token);
    if (used + width > room && lines.at(-1).length) {
      lines.push([]);
      used = 0;
    }
    lines.at(-1).push(index);
    used += width;
  });
  return lines;
};

const numberCell = (sample, row, index, largest) => {
  const value = sample.rows[row][index];
  const cell = element("td", row === "kl" && value > 0 ? "amount" : signOf(value), short(value));
  // the root keeps a span's ±0.1 in sight beside a verdict of ±1
  const strength = Math.round(70 * Math.sqrt(Math.abs(value || 0) / largest));
  if (value) cell.style.setProperty("--strength", `${strength}%`);
  const against = row === "advantage" && value * (sample.rows.delta?.[index] || 0) < 0;
  if (against) cell.classList.add("against");
  return cell;
};

const stripLine = (sample, rows, scales, indices) => {
  const table = element("table", "strip");
  table.style.width = `${HEAD + indices.reduce((sum, index) => sum + widthOf(sample.tokens[index]), 0)}px`;
  const head = table.insertRow();
  head.append(element("th", "", "token"));
  for (const index of indices) {
    const cell = element("td", `token ${sample.labels[index] || ""}`, sample.tokens[index]);
    cell.style.width = `${widthOf(sample.tokens[index])}px`;
    head.append(cell);
  }
  for (const row of rows) {
    const line = table.insertRow();
    line.append(element("th", "", nameOf(row)));
    for (const index of indices) line.append(numberCell(sample, row, index, scales[row]));
  }
  for (const line of table.rows) indices.forEach((index, i) => (line.cells[i + 1].dataset.token = index));
  return table;
};

const drawStrip = (sample, rows, place) => {
  const shown = rows.filter((row) => sample.rows[row]);
  const scales = Object.fromEntries(
    shown.map((row) => [row, Math.max(1e-12, ...sample.rows[row].map((value) => Math.abs(value || 0)))]),
  );
  const lines = breakLines(sample.tokens, place.clientWidth - HEAD);
  place.replaceChildren(...lines.map((indices) => stripLine(sample, shown, scales, indices)));
};

const tokenWords = (sample, index) => {
  const [start, end] = sample.intervals[index] || [];
  const label = sample.labels[index] ? ` · span: ${sample.labels[index]}` : "";
  const where = start === undefined ? "" : start === end ? " · no characters" : ` · characters ${start}–${end}`;
  const numbers = Object.keys(sample.rows).map((row) => `${nameOf(row)} ${exact(sample.rows[row][index] ?? null)}`);
  return `${index + 1}/${sample.tokens.length} “${sample.tokens[index]}”${where}${label} · ${numbers.join(" · ")}`;
};

// ---- one sample

const responseOf = (sample) => {
  const response = element("pre", "response");
  for (const [text, spans, tokens] of sample.pieces) {
    const labels = new Set(spans.map((index) => sample.spans[index].label));
    if (labels.size > 1) labels.delete("improvable");
    const piece = element(labels.size ? "mark" : "span", labels.size > 1 ? "both" : [...labels].join(""), text);
    const reasons = spans.map((index) => sample.spans[index].reason).filter(Boolean);
    if (reasons.length) piece.title = reasons.join("; ");
    if (tokens.length) piece.dataset.tokens = tokens.join(" ");
    response.append(piece);
  }
  return response;
};

const spansOf = (sample) => {
  const list = element("ul", "spans");
  for (const span of sample.spans) {
    const item = element("li");
    item.append(element("b", span.label, span.label), " ", element("code", "", span.text), " ", span.reason);
    list.append(item);
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

const promptOf = (sample) => {
  const fold = element("details", "prompt");
  fold.append(element("summary", "", "Prompt"));
  for (const message of sample.prompt) fold.append(element("p", "role", message.role), element("pre", "", message.content));
  fold.open = sample.prompt.reduce((size, message) => size + message.content.length, 0) < 600;
  return fold;
};

const headingOf = (sample) => {
  const score = sample.score === null ? "no score" : `score ${minus(String(sample.score))}`;
  return element("h3", "", `${sample.id} · ${sample.method} · step ${sample.step} · ${score}`);
};

const showSample = (sample, rows, article) => {
  const critique = sample.failure
    ? element("p", "warning", `▲ No critique: ${sample.failure}`)
    : element("p", "critique", sample.critique || "(an empty critique)");
  const checks = sample.checks.map((check) => element("p", "warning", `▲ ${check}`));
  const readout = element("p", "readout", "Point at a token to read its numbers.");
  const strip = element("div", "strips");
  readout.setAttribute("aria-live", "polite");
  strip.tabIndex = 0;
  strip.setAttribute("role", "group");
  strip.setAttribute("aria-label", "Token strip: arrow keys move from token to token");
  const response = responseOf(sample);
  article.replaceChildren(
    headingOf(sample), promptOf(sample), element("p", "role", "response"), response,
    critique, spansOf(sample), lostOf(sample), ...checks, element("p", "hint", sample.facts), readout, strip,
  );
  drawStrip(sample, rows, strip);
  followTokens(sample, article, strip, readout);
  return () => drawStrip(sample, rows, strip);
};

const followTokens = (sample, article, strip, readout) => {
  let current = -1;
  const select = (index) => {
    current = Math.max(0, Math.min(sample.tokens.length - 1, index));
    article.querySelectorAll(".lit").forEach((lit) => lit.classList.remove("lit"));
    strip.querySelectorAll(`[data-token="${current}"]`).forEach((cell) => cell.classList.add("lit"));
    article.querySelectorAll(`[data-tokens~="${current}"]`).forEach((piece) => piece.classList.add("lit"));
    readout.textContent = tokenWords(sample, current);
  };
  const point = (event) => {
    const target = event.target.closest("[data-token], [data-tokens]");
    if (target) select(Number(target.dataset.token ?? target.dataset.tokens.split(" ")[0]));
  };
  strip.onpointerover = point;
  article.querySelector(".response").onpointerover = point;
  strip.onkeydown = (event) => {
    const last = sample.tokens.length - 1;
    const moved = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: last }[event.key];
    if (moved === undefined || last < 0) return;
    event.preventDefault();
    select(moved);
    strip.querySelector(".lit").scrollIntoView({ block: "nearest" });
  };
};

// ---- the list of samples and its filters

const startViewer = ({ rows, samples }) => {
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const article = document.getElementById("sample");
  let redraw = () => {};

  const offer = (select, values) => {
    for (const value of new Set(values)) {
      const option = element("option", "", String(value));
      option.value = String(value);
      select.append(option);
    }
  };
  offer(form.elements.method, samples.map((sample) => sample.method));
  offer(form.elements.step, samples.map((sample) => sample.step).sort((a, b) => a - b));

  const matches = (sample) => {
    const wanted = form.elements;
    return (
      (!wanted.method.value || sample.method === wanted.method.value) &&
      (!wanted.step.value || String(sample.step) === wanted.step.value) &&
      (!wanted.failed.checked || sample.failure !== null) &&
      (!wanted.poor.checked || sample.spans.some((span) => span.label === "poor"))
    );
  };
  const open = (sample, button) => {
    list.querySelectorAll("[aria-current]").forEach((other) => other.removeAttribute("aria-current"));
    button.setAttribute("aria-current", "true");
    redraw = showSample(sample, rows, article);
  };
  const entry = (sample) => {
    const button = element("button");
    const count = (label) => sample.spans.filter((span) => span.label === label).length;
    const outcome = sample.failure ? "▲ critique failed" : `${count("good")} good, ${count("poor")} poor`;
    const score = sample.score === null ? "" : ` · score ${minus(String(sample.score))}`;
    const lost = sample.lost.length ? ", quotes lost" : "";
    const flag = sample.checks.length && !sample.failure ? " ▲" : "";
    button.type = "button";
    button.append(element("b", "", sample.id), element("span", "", `${sample.method} · step ${sample.step}`));
    button.append(element("span", "", `${outcome}${lost}${score}${flag}`));
    button.addEventListener("click", () => open(sample, button));
    const item = element("li");
    item.append(button);
    return item;
  };
  const refresh = () => {
    const found = samples.filter(matches);
    list.replaceChildren(...found.map(entry));
    document.getElementById("found").textContent = `${found.length} of ${samples.length}`;
    article.replaceChildren();
    redraw = () => {};
    if (found.length) open(found[0], list.querySelector("button"));
  };
  form.addEventListener("change", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  let width = 0;
  new ResizeObserver(([change]) => {
    if (Math.abs(change.contentRect.width - width) < 1) return;
    width = change.contentRect.width;
    redraw();
  }).observe(article);
  refresh();
};

const data = document.getElementById("data");
if (data) startViewer(JSON.parse(data.textContent));
