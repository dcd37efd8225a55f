import assert from "node:assert/strict";
import { test } from "node:test";

import { ranges } from "../src/models/ranges.ts";

test("ascending numbers are written as ranges", () => {
  assert.equal(ranges([]), "");
  assert.equal(ranges([7]), "7");
  assert.equal(ranges([0, 1, 2, 6, 8, 9]), "0-2, 6, 8-9");
});
