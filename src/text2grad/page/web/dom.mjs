// Elements. Text only ever enters a page through textContent: nothing a model wrote is parsed as HTML.

export const element = (tag, className = "", text = null) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== null) node.textContent = text;
  return node;
};

export const button = (text, action, className = "") => {
  const control = element("button", className, text);
  control.type = "button";
  control.addEventListener("click", action);
  return control;
};

export const byId = (id) => document.getElementById(id);

// Controls are open on a wide screen and fold on a phone.
export const openControls = () => {
  const wide = matchMedia("(min-width: 761px)").matches;
  for (const fold of document.querySelectorAll(".controls")) fold.open = wide;
};

export const embeddedData = (id) => JSON.parse(byId(id)?.textContent ?? "null");

export const isTyping = (target) => target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select") !== null;

// A list of any length in a box: only the entries in sight are elements, and the box is one tab stop.
export class LongList {
  // `show` returns the content of an entry's row; `choose` is called with the number of the new current entry.
  constructor(box, height, { show, choose }) {
    Object.assign(this, { box, height, show, choose });
    this.entries = [];
    this.current = -1;
    this.first = 0; // the first row drawn
    this.end = 0;
    this.room = element("div", "room");
    this.room.setAttribute("role", "presentation");
    box.replaceChildren(this.room);
    box.addEventListener("scroll", () => this.drawIfBare(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("keydown", (event) => this.onKey(event));
    box.addEventListener("click", (event) => {
      const row = event.target.closest("[data-at]");
      if (row) this.select(Number(row.dataset.at));
    });
  }

  fill(entries, current = -1) {
    const moved = current !== this.current;
    this.entries = entries;
    this.current = current;
    this.room.style.height = `${entries.length * this.height}px`;
    if (moved) this.reveal();
    this.draw();
  }

  reveal() {
    const top = this.current * this.height;
    const { scrollTop, clientHeight } = this.box;
    if (this.current < 0) this.box.scrollTop = 0;
    else if (top < scrollTop) this.box.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.box.scrollTop = top + this.height - clientHeight;
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.height) - 1);
    const last = this.entries.length - 1;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -last - 1, End: last + 1 };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.select(Math.max(0, Math.min(last, this.current + moves[event.key])));
  }

  select(at) {
    if (at < 0 || at >= this.entries.length) return;
    this.current = at;
    this.reveal();
    this.draw();
    this.choose(at);
  }

  inSight() {
    const first = Math.floor(this.box.scrollTop / this.height);
    return [first, first + Math.ceil((this.box.clientHeight || 400) / this.height) + 1];
  }

  drawIfBare() {
    const [first, end] = this.inSight();
    if (first < this.first || end > this.end) this.draw();
  }

  // Draw the rows in sight, and as many on either side, so that short scrolls need no drawing.
  draw() {
    const [top, bottom] = this.inSight();
    const first = Math.max(0, 2 * top - bottom);
    const visible = this.entries.slice(first, 2 * bottom - top);
    this.room.replaceChildren(...visible.map((entry, index) => this.row(entry, first + index)));
    Object.assign(this, { first, end: 2 * bottom - top });
    if (this.current >= first && this.current < first + visible.length) {
      this.box.setAttribute("aria-activedescendant", `${this.box.id}-${this.current}`);
    } else this.box.removeAttribute("aria-activedescendant");
  }

  row(entry, at) {
    const row = element("div", "row");
    row.id = `${this.box.id}-${at}`;
    row.dataset.at = at;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(at === this.current));
    row.setAttribute("aria-setsize", String(this.entries.length));
    row.setAttribute("aria-posinset", String(at + 1));
    row.style.top = `${at * this.height}px`;
    row.style.height = `${this.height}px`;
    row.append(...this.show(entry));
    return row;
  }
}
