import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, count, decimal, duration, grouped, percent } from "../src/units.ts";

test("there is no minus before zero", () => {
  assert.deepEqual([decimal(-0.0001, 3), decimal(-0, 2), decimal(-0.4, 0)], ["0.000", "0.00", "0"]);
  assert.deepEqual([decimal(-0.0006, 3), decimal(-12.5, 1)], ["-0.001", "-12.5"]);
  assert.deepEqual([percent(-0), percent(0)], ["0.0 %", "0.0 %"]);
  assert.equal(grouped(-0), "0");
});

test("thousands are set apart", () => {
  assert.deepEqual([grouped(1234567), count(1, "token"), count(2048, "token")], ["1,234,567", "1 token", "2,048 tokens"]);
  assert.equal(decimal(1234.56, 1), "1,234.6");
});

test("sizes and times have the unit that fits", () => {
  assert.deepEqual([bytes(0), bytes(999), bytes(1500), bytes(12e6)], ["0 B", "999 B", "1.5 KB", "12 MB"]);
  assert.deepEqual([duration(0), duration(999), duration(1500), duration(61_000)], ["0 ms", "999 ms", "1.5 s", "1 min 1 s"]);
});
