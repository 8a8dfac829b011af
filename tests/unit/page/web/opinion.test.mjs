import assert from "node:assert/strict";
import { test } from "node:test";
import {
  EMPTY, Outbox, markAt, nextThat, saysSomething, withCheck, withMark, withReason, withSuggestionShown, withoutMark,
} from "../../../../src/text2grad/page/web/opinion.mjs";

test("marks are in order, and one that is marked again keeps its reason", () => {
  const marked = withMark(withReason(withMark(EMPTY, 5, 9, -1), 0, "why"), 0, 2, 1);
  assert.deepEqual(marked.spans.map((span) => [span.start, span.label, span.reason]), [[0, 1, ""], [5, -1, "why"]]);
  assert.deepEqual(withMark(marked, 5, 9, 1).spans[1], { start: 5, end: 9, label: 1, reason: "why" });
  assert.deepEqual(withoutMark(marked, 0).spans.map((span) => span.start), [5]);
  assert.equal(markAt(withMark(marked, 4, 10, 0), 6), 2, "the narrowest");
  assert.equal(markAt(marked, 3), -1);
  assert.deepEqual(EMPTY.spans, []);
});

test("a better answer alone says something", () => {
  assert.ok(saysSomething({ ...EMPTY, corrected: "Friday." }) && !saysSomething({ ...EMPTY, corrected: " " }));
});

test("whether a suggestion came first is kept", () => {
  assert.equal(withSuggestionShown(EMPTY).shown, "first");
  assert.equal(withSuggestionShown(withMark(EMPTY, 0, 1, 1)).shown, "after");
  assert.equal(withSuggestionShown({ ...EMPTY, score: 0 }).shown, "after");
  assert.equal(withSuggestionShown({ ...EMPTY, shown: "first", score: 1 }).shown, "first");
});

test("a check of a span can be changed and taken back", () => {
  const right = withCheck(EMPTY, 0, 2, true);
  assert.deepEqual(right.checks, [{ start: 0, end: 2, correct: true }]);
  assert.deepEqual(withCheck(right, 0, 2, false).checks, [{ start: 0, end: 2, correct: false }]);
  assert.deepEqual(withCheck(right, 0, 2, true).checks, []);
  assert.ok(!saysSomething(right));
});

test("the next goes round", () => {
  assert.equal(nextThat([1, 0, 1, 0], 1, (each) => each === 1), 2);
  assert.equal(nextThat([1, 0, 0], 0, (each) => each === 1), 0);
  assert.equal(nextThat([0], 0, (each) => each === 1), -1);
});

class Storage {
  constructor() { this.kept = new Map(); }
  get length() { return this.kept.size; }
  key(at) { return [...this.kept.keys()][at]; }
  getItem(name) { return this.kept.get(name) ?? null; }
  setItem(name, value) { this.kept.set(name, value); }
  removeItem(name) { this.kept.delete(name); }
}

// A server like ours: acts by name, versions by opinion; `down` makes it unreachable.
class Server {
  constructor() { this.acts = new Map(); this.down = false; this.dropAnswers = 0; }
  version(act) { return [...this.acts.values()].filter((each) => each.item === act.item).length; }
  async send(act) {
    if (this.down) throw new Error("down");
    if (!this.acts.has(act.act)) {
      if (act.base !== this.version(act)) return { status: 409, body: { version: this.version(act), history: [EMPTY] } };
      this.acts.set(act.act, act);
    }
    if (this.dropAnswers > 0) { this.dropAnswers -= 1; throw new Error("killed before it answered"); }
    return { status: 200, body: { version: this.version(act) } };
  }
}

const outboxOf = (server, storage, waiting = [], conflicts = []) =>
  new Outbox({
    send: (act) => server.send(act), storage, prefix: "p:", later: (again) => waiting.push(again),
    onChange: () => {}, onConflict: (...all) => conflicts.push(all),
  });

test("acts arrive in order, each on top of the last", async () => {
  const server = new Server();
  const storage = new Storage();
  const outbox = outboxOf(server, storage);
  await Promise.all([1, -1, 0].map((score) => outbox.put("a", "", 0, { ...EMPTY, score })));
  assert.deepEqual([...server.acts.values()].map((act) => [act.base, act.opinion.score]), [[0, 1], [1, -1], [2, 0]]);
  assert.equal(storage.length, 0);
});

test("a server that is gone, and a page that is closed, lose nothing and double nothing", async () => {
  const server = new Server();
  const storage = new Storage();
  const waiting = [];
  const outbox = outboxOf(server, storage, waiting);
  server.dropAnswers = 1; // the first is on disk, but was never confirmed
  await outbox.put("a", "", 0, { ...EMPTY, score: 1 });
  server.down = true;
  await outbox.put("a", "", 0, { ...EMPTY, score: -1 });
  assert.equal(outbox.trouble, "the server does not answer");
  server.down = false;
  const next = outboxOf(server, storage); // the page is opened again; the old one is gone
  next.restore();
  await new Promise((done) => setTimeout(done, 10));
  assert.deepEqual([...server.acts.values()].map((act) => act.opinion.score), [1, -1]);
  assert.equal(storage.length, 0);
  assert.equal(waiting.length, 2);
});

test("a conflict gives back what was meant, and what is there", async () => {
  const server = new Server();
  const conflicts = [];
  await outboxOf(server, new Storage()).put("a", "", 0, { ...EMPTY, score: 1 });
  const other = outboxOf(server, new Storage(), [], conflicts);
  await other.put("a", "", 0, { ...EMPTY, score: -1 });
  assert.equal(conflicts.length, 1);
  assert.equal(conflicts[0][1].score, -1);
  assert.equal(conflicts[0][2].version, 1);
  assert.equal(other.acts.length, 0);
});

test("what is not accepted is said and does not stop the rest", async () => {
  const answers = [{ status: 422, body: { error: "outside" } }, { status: 507, body: { error: "no room" } }];
  const storage = new Storage();
  const outbox = new Outbox({
    send: async () => answers.shift(), storage, prefix: "p:", later: () => {}, onChange: () => {}, onConflict: () => {},
  });
  await outbox.put("a", "", 0, EMPTY);
  assert.equal(outbox.trouble, "not accepted: outside");
  await outbox.put("a", "", 0, EMPTY);
  assert.equal(outbox.trouble, "no room");
  assert.equal(storage.length, 1);
});
