import assert from "node:assert/strict";
import { test } from "node:test";
import {
  addressOf, exact, isAgainst, matching, ordered, readAddress, scaleOf, signOf, strengthOf, tokenWords,
  overSteps, recurring,
} from "../../../../src/text2grad/page/web/signals.mjs";

const entry = (fields) => ({ key: "k", method: "a", step: 0, id: "p", score: null, failed: false, lost_count: 0, wrong: 0, poor: 0, length: 5, delta: 0, ...fields });

test("each filter takes what it names", () => {
  const entries = [
    entry({ key: "0", step: 5, score: 1 }), entry({ key: "1", method: "b", failed: true }),
    entry({ key: "2", id: "q", score: -0.5, lost_count: 2, poor: 1 }), entry({ key: "3", score: 0, wrong: 3, length: 9 }),
  ];
  const keys = (wanted, hits) => matching(entries, wanted, hits).map((each) => each.key).join("");
  const cases = [
    [{}, "0123"], [{ method: "b" }, "1"], [{ step: "5" }, "0"], [{ step: "0" }, "123"], [{ prompt: "q" }, "2"],
    [{ score: "positive" }, "0"], [{ score: "zero" }, "3"], [{ score: "negative" }, "2"], [{ score: "none" }, "1"],
    [{ failed: true }, "1"], [{ lost: true }, "2"], [{ wrong: true }, "3"], [{ poor: true }, "2"],
    [{ least: "6" }, "3"], [{ most: "5" }, "012"], [{ least: "6", failed: true }, ""],
  ];
  for (const [wanted, expected] of cases) assert.equal(keys(wanted), expected, JSON.stringify(wanted));
  assert.equal(keys({}, new Set(["1", "3"])), "13");
});

test("each order has its first first, and leaves the entries alone", () => {
  const entries = [
    entry({ key: "a", step: 1, score: 0 }), entry({ key: "b", step: 3, score: 1, length: 7 }),
    entry({ key: "c", score: null, wrong: 2, delta: 4 }), entry({ key: "d", step: 2, score: -1 }),
  ];
  const orders = { "": "abcd", newest: "bdac", best: "badc", worst: "dabc", longest: "bacd", wrong: "cabd", delta: "cabd" };
  for (const [order, expected] of Object.entries(orders)) {
    assert.equal(ordered(entries, order).map((each) => each.key).join(""), expected, order);
  }
  assert.equal(entries[0].key, "a");
});

test("the address holds what is shown and nothing else", () => {
  const state = { sample: "seed-0 text2grad/12", q: "a&b=c #x", wrong: true, failed: false, token: 0, sort: "", prompt: null };
  const address = addressOf(state);
  assert.deepEqual(readAddress(address), { sample: "seed-0 text2grad/12", q: "a&b=c #x", wrong: "1", token: "0" });
  assert.equal(addressOf({ q: "" }), "#samples");
  assert.deepEqual(readAddress("#"), {});
});

test("numbers and their strength", () => {
  assert.deepEqual([null, undefined, 0, -0.012345, 1e-7].map(exact), ["–", "–", "0", "−0.01235", "1e−7"]);
  assert.equal(scaleOf([null, -2, 1]), 2);
  assert.ok(scaleOf([]) > 0);
  assert.deepEqual([0, 0.5, -2, null].map((value) => strengthOf(value, 2)), [0, 0.5, 1, 0]);
  assert.deepEqual([1, -1, 0, null].map(signOf), ["plus", "minus", "", ""]);
});

test("a token in words, with its id and a wrong sign", () => {
  const sample = { tokens: ["a", "b"], ids: [5, 7], intervals: [[0, 1], [1, 1]], rows: { delta: [0, -1], advantage: [1, 0.5] } };
  assert.equal(tokenWords(sample, 0), "1/2 “a” · id 5 · characters 0–1 · delta 0 · advantage 1");
  assert.equal(tokenWords(sample, 1), "2/2 “b” · id 7 · no characters · delta −1 · advantage 0.5 · ▲ wrong sign");
  assert.deepEqual([0, 1].map((index) => isAgainst(sample.rows, index)), [false, true]);
  assert.ok(!isAgainst({ delta: [1] }, 0));
});

test("prompts that are answered again, the fixed ones first", () => {
  const entries = [["a", 0], ["b", 0], ["a", 5], ["p", 0, true], ["", 0], ["", 5], ["c", 5], ["c", 5]];
  const found = recurring(entries.map(([id, step, probe = false]) => ({ id, step, probe })));
  assert.deepEqual(found, [["p", true], ["a", false]]);
});

test("one prompt over steps: an answer of each, in order, the one in sight among them", () => {
  const entry = (key, step, id = "a", method = "m") => ({ key, step, id, method });
  const entries = [entry("5b", 5), entry("0", 0), entry("5c", 5), entry("other", 2, "b"), entry("scalar", 3, "a", "s")];
  const keys = (sample, most) => overSteps(entries, sample, most).map(({ key }) => key).join(" ");
  assert.equal(keys(entries[0]), "0 5b");
  assert.equal(keys(entries[2]), "0 5c");
  assert.equal(keys(entries[3]), "other");
  assert.equal(keys({ ...entries[0], id: "" }), "");
  const many = Array.from({ length: 101 }, (_, step) => entry(String(step), step));
  assert.deepEqual(overSteps(many, many[3], 5).map(({ step }) => step), [0, 25, 50, 75, 100]);
});
