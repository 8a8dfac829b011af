// The opinion of a person on an answer, as plain values, and the queue that saves it on the server. No DOM.

export const EMPTY = { spans: [], critique: "", score: null, omissions: [], corrected: "", checks: [], shown: "" };
export const LABELS = { 1: "good", 0: "could be better", "-1": "poor" };
export const VERDICTS = [-1, -0.5, 0, 0.5, 1];

export const saysSomething = (opinion) =>
  opinion.spans.length > 0 || opinion.critique.trim() !== "" || opinion.score !== null || opinion.omissions.length > 0 ||
  (opinion.corrected ?? "").trim() !== "";

const inOrder = (spans) => [...spans].sort((a, b) => a.start - b.start || a.end - b.end);

// Mark a place; a place that is already marked gets the new label and keeps its reason.
export const withMark = (opinion, start, end, label) => {
  const before = opinion.spans.find((span) => span.start === start && span.end === end);
  const others = opinion.spans.filter((span) => span !== before);
  return { ...opinion, spans: inOrder([...others, { start, end, label, reason: before?.reason ?? "" }]) };
};

export const withoutMark = (opinion, index) => ({ ...opinion, spans: opinion.spans.filter((_, at) => at !== index) });

export const withReason = (opinion, index, reason) => ({
  ...opinion,
  spans: opinion.spans.map((span, at) => (at === index ? { ...span, reason } : span)),
});

// Judge a span of the suggestion right or wrong; repeating the verdict withdraws it.
export const withCheck = (opinion, start, end, correct) => {
  const previous = opinion.checks.find((check) => check.start === start && check.end === end);
  const others = opinion.checks.filter((check) => check !== previous);
  return { ...opinion, checks: previous?.correct === correct ? others : [...others, { start, end, correct }] };
};

// Record whether the suggestion was shown first or after the person's marks; the first record stays.
export const withSuggestionShown = (opinion) =>
  opinion.shown ? opinion : { ...opinion, shown: saysSomething(opinion) ? "after" : "first" };

export const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// The narrowest marked place at a position, as an index; -1 if there is none.
export const markAt = (opinion, position) => {
  const size = (index) => opinion.spans[index].end - opinion.spans[index].start;
  const enclosing = opinion.spans
    .map((_, index) => index)
    .filter((index) => opinion.spans[index].start <= position && position < opinion.spans[index].end);
  return enclosing.sort((a, b) => size(a) - size(b))[0] ?? -1;
};

// The index of the next entry after `from` that fits, wrapping around; -1 if there is none.
export const nextThat = (entries, from, fits) => {
  for (let step = 1; step <= entries.length; step += 1) {
    const at = (from + step) % entries.length;
    if (fits(entries[at])) return at;
  }
  return -1;
};

// Acts on their way to the server, in order. Each stays in `storage` until it is acknowledged, so that none is lost
// if the server stops or the page is closed. Acts have unique names: one that is sent twice counts once.
export class Outbox {
  // `send` returns { status, body }, and rejects if the server is unreachable; `later` schedules a retry.
  constructor({ send, storage, prefix, later, onChange, onConflict }) {
    Object.assign(this, { send, storage, prefix, later, onChange, onConflict });
    this.acts = [];
    this.trouble = "";
    this.busy = false;
    this.count = 0;
  }

  // Queue the acts that an earlier page did not send.
  restore() {
    const keys = Array.from({ length: this.storage.length }, (_, at) => this.storage.key(at));
    const stored = keys.filter((key) => key.startsWith(this.prefix)).sort();
    this.acts.push(...stored.map((key) => JSON.parse(this.storage.getItem(key))));
    this.flush();
  }

  waiting(item, annotator) {
    return this.acts.filter((act) => act.item === item && act.annotator === annotator);
  }

  put(item, annotator, version, opinion) {
    this.count += 1;
    const when = Date.now().toString(36).padStart(9, "0") + this.count.toString(36).padStart(4, "0");
    const act = `${when}-${Math.random().toString(36).slice(2, 10).padEnd(8, "0")}`;
    const base = version + this.waiting(item, annotator).length;
    const entry = { act, item, annotator, base, opinion };
    this.acts.push(entry);
    try {
      this.storage.setItem(this.prefix + act, JSON.stringify(entry));
    } catch {
      // storage is full or forbidden: the act is still in memory
    }
    return this.flush();
  }

  drop(act) {
    this.acts = this.acts.filter((other) => other !== act);
    this.storage.removeItem(this.prefix + act.act);
  }

  async flush() {
    if (this.busy) return;
    this.busy = true;
    while (this.acts.length && (await this.sendFirst()));
    this.busy = false;
    this.onChange();
  }

  // Send the first act; false if the next one has to wait.
  async sendFirst() {
    const act = this.acts[0];
    this.onChange();
    let answer;
    try {
      answer = await this.send(act);
    } catch {
      return this.wait("the server does not answer");
    }
    if (answer.status === 200 || answer.status === 404 || answer.status === 422) {
      this.drop(act);
      this.trouble = answer.status === 200 ? "" : `not accepted: ${answer.body.error}`;
      if (answer.status === 200) this.onSaved?.(act, answer.body);
      return true;
    }
    if (answer.status === 409) {
      const pending = this.waiting(act.item, act.annotator);
      pending.forEach((other) => this.drop(other));
      this.onConflict(act, pending.at(-1).opinion, answer.body);
      return true;
    }
    return this.wait(answer.body?.error || "the server was restarted: open the address that it printed");
  }

  wait(trouble) {
    this.trouble = trouble;
    this.later(() => this.flush());
    return false;
  }
}
