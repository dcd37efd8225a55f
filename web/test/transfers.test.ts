import assert from "node:assert/strict";
import { test } from "node:test";

import type { Progress } from "../src/api/server.ts";
import { type Transfer, Transfers } from "../src/state/transfers.ts";

/** Return what is shown after each step of a pull. */
async function shownOf(steps: Progress[]): Promise<Transfer[]> {
  const transfers = new Transfers(() => Promise.resolve());
  const shown: Transfer[] = [];
  const note = () => shown.push(...transfers.all.value);
  await transfers.run("pull", "m", async function* () {
    for (const [at, step] of steps.entries()) {
      if (at) note();
      await new Promise((resolve) => setImmediate(resolve));
      yield step;
    }
  });
  note();
  return shown;
}

test("what was there before a pull went on is done, and has no rate", async () => {
  const file = { status: "pulling", digest: "sha256:1", total: 300 };
  const shown = await shownOf([{ status: "pulling manifest" }, { ...file, completed: 150 }, { ...file, completed: 160 }]);
  assert.deepEqual(shown.map((one) => [one.completed, one.bytesPerSecond > 0]), [[0, false], [150, false], [160, true]]);
  assert.equal(shown[1]?.total, 300);
  const late = await shownOf([file, { ...file, completed: 150 }, { ...file, completed: 160 }]);
  assert.deepEqual(late.map((one) => [one.completed, one.bytesPerSecond > 0]), [[0, false], [150, false], [160, true]]);
});

const OLD = { name: "old", completed: 20, total: 30 };

test("the newest transfer is the first, and one that is done again takes its place", async () => {
  const transfers = new Transfers(() => Promise.resolve());
  transfers.add("pull", OLD, () => undefined);
  await transfers.run("create", "new", async function* () {
    yield await Promise.resolve({ status: "success" });
  });
  assert.deepEqual(transfers.all.value.map((one) => [one.name, one.state]), [["new", "done"], ["old", "cancelled"]]);
  transfers.add("pull", OLD, () => undefined);
  assert.deepEqual(transfers.all.value.map((one) => one.name), ["old", "new"]);
});
