import assert from "node:assert/strict";
import { test } from "node:test";
import { diffOf } from "../../../../src/text2grad/page/web/diff.mjs";

const shown = (before, after) =>
  diffOf(before, after).map(([kind, text]) => ({ same: "", gone: "-", added: "+" })[kind] + text).join("|");

test("words that came and went", () => {
  assert.equal(shown("It is due today.", "It is due on Friday."), "It is due |-today|+on Friday|.");
  assert.equal(shown("", "new"), "+new");
  assert.equal(shown("old", ""), "-old");
  assert.equal(shown("same", "same"), "same");
  assert.equal(shown("", ""), "");
});

test("both texts are in it, whatever they are", () => {
  const letters = ["a", " ", "b", "🙂", "\n", "é", "報"];
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const text = () => Array.from({ length: Math.floor(random() * 30) }, () => letters[Math.floor(random() * 7)]).join("");
  for (let round = 0; round < 300; round += 1) {
    const [before, after] = [text(), text()];
    const pieces = diffOf(before, after);
    assert.equal(pieces.filter(([kind]) => kind !== "added").map(([, words]) => words).join(""), before);
    assert.equal(pieces.filter(([kind]) => kind !== "gone").map(([, words]) => words).join(""), after);
  }
});

test("long texts are compared by lines, and soon", () => {
  const before = Array.from({ length: 5000 }, (_, line) => `line ${line} of it\n`).join("");
  const began = process.cpuUsage().user;
  assert.ok(shown(before, before.replace("line 7 ", "line seven ")).includes("|-line 7 of it\n|+line seven of it\n|"));
  assert.ok(process.cpuUsage().user - began < 3e6);
});
