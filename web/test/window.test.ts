import assert from "node:assert/strict";
import { test } from "node:test";

import type { Turn } from "../src/chat/tree.ts";
import { WHOLE, guess, rangeOf, rowsOf, sum } from "../src/chat/window.ts";

const turn: Turn = { id: "t", parent: "", role: "user", content: "short", created: 1, state: "done" };
const heights = Array.from({ length: 1000 }, (_, at) => (at % 2 ? 300 : 100));

test("a short conversation is drawn whole", () => {
  assert.deepEqual(rangeOf(heights.slice(0, WHOLE), 5000, 800), { from: 0, to: WHOLE });
  assert.deepEqual(rangeOf([], 0, 800), { from: 0, to: 0 });
});

test("of a long one a screen above and one below what is in sight is drawn, wherever that is", () => {
  for (const top of [0, 1, 99, 12_345, 100_000, sum(heights) - 800, sum(heights) + 9000]) {
    const { from, to } = rangeOf(heights, top, 800);
    assert.ok(to > from && to <= heights.length);
    const begin = sum(heights.slice(0, from));
    const end = sum(heights.slice(0, to));
    assert.ok(begin <= Math.max(0, top - 800) && end >= Math.min(sum(heights), top + 1600));
    assert.ok(end - begin <= 3 * 800 + 2 * 300);
  }
});

test("the gaps are as high as what they stand for, and what is kept is between them", () => {
  const rows = rowsOf([10, 20, 30, 40, 50, 60], { from: 2, to: 3 }, new Set([0, 5, -1]));
  assert.deepEqual(rows, [{ index: 0 }, { from: 1, height: 20 }, { index: 2 }, { from: 3, height: 90 }, { index: 5 }]);
});

test("long texts and images are taken to be higher", () => {
  const bare = guess(turn);
  assert.ok(guess({ ...turn, content: "word ".repeat(100) }) > bare + 100);
  assert.ok(guess({ ...turn, content: "one\n\ntwo" }) > bare);
  assert.ok(guess({ ...turn, images: ["data:"] }) > bare + 200);
});
