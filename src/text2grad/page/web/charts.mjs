// Charts: the value under the pointer, or under the guide moved by arrow keys. All charts are one tab stop.
import { exact } from "./signals.mjs";

const readChart = (svg) => {
  const { scale, curves } = JSON.parse(svg.dataset.hover);
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
    output.textContent = `step ${step}: ` + known.map(([name, value]) => `${name} ${exact(value)}`).join(" · ");
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

// Up and down move from chart to chart; only one of a group is in the order of Tab.
const oneTabStop = (group) => {
  const charts = [...group.querySelectorAll("svg[data-hover]")];
  charts.slice(1).forEach((svg) => svg.setAttribute("tabindex", "-1"));
  group.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = by && charts[charts.indexOf(event.target) + by];
    if (!next || !charts.includes(event.target)) return;
    event.preventDefault();
    event.target.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
};

export const startCharts = (root) => {
  root.querySelectorAll("svg[data-hover]").forEach(readChart);
  root.querySelectorAll(".charts").forEach(oneTabStop);
};
