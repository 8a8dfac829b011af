import assert from "node:assert/strict";
import { test } from "node:test";
import { cut, isUnseen, pointAt, pointsOf, shortTitles, snapped, spelled, wordsOf } from "../../../../src/text2grad/page/web/text.mjs";

test("places are code points, as in records", () => {
  const text = "a🙂b";
  const points = pointsOf(text);
  assert.deepEqual(points, [0, 1, 3, 4]);
  assert.deepEqual([0, 1, 2, 3, 4].map((index) => pointAt(points, index)), [0, 1, 1, 2, 3]);
  assert.deepEqual(pointsOf(""), [0]);
});

test("words of any script, without white space", () => {
  const of = (text) => wordsOf(text, pointsOf(text)).map(([a, b]) => Array.from(text).slice(a, b).join(""));
  assert.deepEqual(of("It's due, 🙂 next  week."), ["It's", "due", ",", "🙂", "next", "week", "."]);
  assert.ok(of("報告は来週です。").length > 2);
  assert.deepEqual(of(" \n\t"), []);
  const text = "one two three";
  assert.deepEqual(wordsOf(text, pointsOf(text), 4, 7), [[4, 7]]);
});

test("a long text takes no longer than it should", () => {
  const text = "It is 🙂 due on Friday, at noon. ".repeat(6000);
  const began = process.cpuUsage().user;
  const words = wordsOf(text, pointsOf(text));
  assert.equal(words.length, 6000 * 10);
  assert.equal(words.at(-1)[1], Array.from(text).length - 1);
  assert.ok(process.cpuUsage().user - began < 3e6);
});

test("a drag is grown to whole words", () => {
  const words = [[0, 2], [3, 5], [6, 9]];
  assert.deepEqual(snapped(words, 1, 4), [0, 5]);
  assert.deepEqual(snapped(words, 4, 4), [3, 5]);
  assert.deepEqual(snapped(words, 2, 3), null);
  assert.deepEqual(snapped(words, 2, 7), [3, 9]);
});

test("pieces cover the text once, and know their places", () => {
  assert.deepEqual(cut(0, 6, [[1, 3], [2, 5]]), [
    { start: 0, end: 1, of: [] },
    { start: 1, end: 2, of: [0] },
    { start: 2, end: 3, of: [0, 1] },
    { start: 3, end: 5, of: [1] },
    { start: 5, end: 6, of: [] },
  ]);
  assert.deepEqual(cut(2, 4, [[0, 9]]), [{ start: 2, end: 4, of: [0] }]);
  assert.deepEqual(cut(2, 4, [[0, 2], [4, 5]]), [{ start: 2, end: 4, of: [] }]);
  assert.deepEqual(cut(3, 3, [[0, 9]]), []);
});

test("what would act unseen is spelled out", () => {
  assert.deepEqual(["\u0000", "\u001b", "\u007f", "\u202e", "\u200b", "\u2028"].map(spelled),
    ["␀", "␛", "␡", "⟨U+202E⟩", "⟨U+200B⟩", "⟨U+2028⟩"]);
  assert.ok(["\u0000", "\u202e", "\u200b", "\u2028", "\ud800"].every(isUnseen));
  assert.ok(!["\n", "\t", "\u200d", "a", " ", "🙂"].some(isUnseen));
});

test("titles lose the words that all of them start with", () => {
  const short = shortTitles(["Write a shop text. Product: lamp.", "Write a shop text. Product: land map."]);
  assert.equal(short("Write a shop text. Product: lamp."), "… lamp.");
  assert.equal(shortTitles(["When is it due?", "When is it due?"])("When is it due?"), "When is it due?");
  assert.equal(shortTitles(["Why?", "When?"])("Why?"), "Why?");
  assert.equal(shortTitles([])("x"), "x");
});
