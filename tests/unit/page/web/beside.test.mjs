import assert from "node:assert/strict";
import { test } from "node:test";
import { endsOf, largestChanges, pairsOf, scoreWords } from "../../../../src/text2grad/page/web/beside.mjs";

const answer = (name, response, pass) => ({ name, response, scores: { tokens: null, pass } });
const item = (id, ...answers) => ({ id, prompt: [{ role: "user", content: `Question ${id}` }], answers });
const ITEMS = [
  item("a", answer("sft", "no", 0), answer("ours", "yes", 1)),
  item("b", answer("sft", "yes", 1), answer("ours", "No", 0)),
  item("c", answer("sft", "same", 1), answer("ours", "same", 1)),
  item("d", answer("sft", "alone", 1)),
  item("e", answer("sft", "other", null), answer("ours", "words", null)),
];
const ids = (wanted) => pairsOf(ITEMS, { words: "", outcome: "", from: "sft", to: "ours", ...wanted }).map(({ id }) => id).join("");

test("prompts whose answers became better, worse, or other", () => {
  assert.equal(ids({}), "abcde");
  assert.equal(ids({ outcome: "better" }), "a");
  assert.equal(ids({ outcome: "worse" }), "b");
  assert.equal(ids({ outcome: "worse", from: "ours", to: "sft" }), "a");
  assert.equal(ids({ outcome: "other" }), "abe");
});

test("words are found in prompts, answers and names, in any case", () => {
  assert.equal(ids({ words: "NO" }), "ab");
  assert.equal(ids({ words: "question d" }), "d");
  assert.equal(ids({ words: "no", outcome: "better" }), "a");
});

test("scores in words", () => {
  assert.equal(scoreWords({ pass: true, rouge_l: -0.12345, none: null }), "✓ pass · rouge_l −0.123");
  assert.equal(scoreWords({ pass: false, rouge_l: 0 }), "✗ pass · rouge_l 0");
});

test("the largest changes come first, equal answers never", () => {
  const changed = [item("f", answer("sft", "a", 0.2), answer("ours", "b", 0.4)), ...ITEMS];
  assert.equal(largestChanges(changed, "sft", "ours").map(({ id }) => id).join(""), "abf");
});

test("runs on different prompts are compared within the first run", () => {
  const other = item("g", answer("other base", "a", 0), answer("other ours", "b", 1));
  assert.deepEqual(endsOf([...ITEMS, other]), ["sft", "ours"]);
  assert.deepEqual(endsOf([]), [undefined, undefined]);
});
