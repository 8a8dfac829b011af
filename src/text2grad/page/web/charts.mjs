// Charts: the value under the pointer, or under the guide moved by arrow keys. All charts are one tab stop.
import { exact } from "./signals.mjs";

const nearest = (positions, x) => {
  const distances = positions.map((position) => Math.abs(position - x));
  return distances.indexOf(Math.min(...distances));
};

const readChart = (svg) => {
  const { byShare, curves } = JSON.parse(svg.dataset.hover);
  const positions = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  if (!positions.length) return;
  const output = svg.parentElement.querySelector("output");
  const guide = svg.querySelector(".guide");
  const atRest = output.textContent;
  let at = positions.length;

  const show = (index) => {
    at = Math.max(0, Math.min(positions.length - 1, index));
    const x = positions[at];
    guide.setAttribute("x1", x);
    guide.setAttribute("x2", x);
    svg.classList.add("reading");
    // Runs of different lengths share few positions, so each shows its nearest step.
    const points = curves
      .map((curve) => ({ ...curve, index: byShare ? nearest(curve.x, x) : curve.x.indexOf(x) }))
      .filter(({ index }) => index >= 0)
      .map(({ name, steps, values, index }) => ({ name, step: steps[index], value: exact(values[index]) }));
    const texts = points.map(({ name, step, value }) => `${name} ${value}${byShare ? ` (step ${step})` : ""}`);
    output.textContent = `${byShare ? "" : `step ${points[0].step}: `}${texts.join(" · ")}`;
  };
  const leave = () => {
    svg.classList.remove("reading");
    output.textContent = atRest;
    at = positions.length;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(nearest(positions, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const moved = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: positions.length - 1 }[event.key];
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
