import assert from "node:assert/strict";
import { test } from "node:test";

import { backticks } from "../src/parts/backticks.ts";

function marked(message: string): string {
  return backticks(message).map(({ text, isCode }) => (isCode ? `[${text}]` : text)).join("|");
}

test("what stands between backticks is code", () => {
  assert.equal(marked("run `tampu create`, then `tampu run x`"), "run |[tampu create]|, then |[tampu run x]");
  assert.equal(marked("`a``b`"), "[a]|[b]");
});

test("a backtick without another one stays", () => {
  assert.equal(marked("no ` code"), "no ` code");
  assert.equal(marked("`a` and ` b"), "[a]| and ` b");
  assert.equal(marked("``"), "``");
  assert.equal(marked("`a\nb`"), "`a\nb`");
});

test("a message without any is a text", () => {
  assert.deepEqual(backticks("plain"), [{ text: "plain", isCode: false }]);
  assert.deepEqual(backticks(""), []);
});
