import assert from "node:assert/strict";
import { test } from "node:test";

import { type Frame, KEPT_MS, type ModelHistory, NOTHING, type Runner, type Step, type TreeNode, quantile, withFrame } from "../src/inside/live.ts";
import { timelineOf } from "../src/inside/timeline.ts";
import { toTrace } from "../src/inside/trace.ts";
import { layOut, sharedBeginnings } from "../src/inside/tree_layout.ts";

const ROOT: TreeNode = { parent: -1, start: 0, tokens: 0, cached: 0, sharing: 8 };
/** Eight requests that share 100 tokens, and another branch without requests. */
const TREE: TreeNode[] = [
  ROOT,
  { parent: 0, start: 0, tokens: 100, cached: 100, sharing: 8 },
  { parent: 0, start: 0, tokens: 7, cached: 3 },
  ...Array.from({ length: 8 }, (_, at): TreeNode => ({ parent: 1, start: 100, tokens: 5, cached: 5, sharing: 1, requests: [at + 1] })),
];

function step(began_ms: number, ...parts: Step["parts"]): Step {
  return { kind: "batch", began_ms, compute_ms: 10, plan_ms: 1, wait_ms: 9, sample_ms: 2, is_new_graph: false, parts };
}

function runner(steps: Step[], change: Partial<Runner> = {}): Runner {
  return {
    interval_ms: 250, steps, lost_steps: 0, requests: [], waiting: 0, longest_wait_ms: 0, waits_ms: [], prompt_tokens: 50,
    generated_tokens: 25, python_share: 0.1, graphs_built: 1, graphs_reused: 9, recording_ms: 0.2, cache: null, ...change,
  };
}

function frame(time_ms: number, told: Runner | null): Frame {
  const none = { bounds: [], counts: [0] };
  const model = { name: "m", engine: "native", context: 1, slots: 8, requests: 1, device_bytes: 0, time_to_first_token: none, time_between_tokens: none, runner: told };
  return { number: 1, time_ms, waiting: 0, processes: [], models: [model] };
}

function history(...frames: Frame[]): ModelHistory {
  const found = frames.reduce(withFrame, NOTHING).models.get("m");
  assert.ok(found);
  return found;
}

test("a shared beginning is one box as tall as all that begin with it", () => {
  const { boxes, rows } = layOut(TREE);
  assert.equal(rows, 9);
  const [shared, other, ...leaves] = boxes;
  assert.deepEqual([shared?.row, shared?.rows], [0, 8]);
  assert.deepEqual([other?.row, other?.rows], [8, 1]);
  assert.deepEqual(leaves.map((box) => box.row), [0, 1, 2, 3, 4, 5, 6, 7]);
  for (const leaf of leaves) assert.equal(leaf.x, shared ? shared.x + shared.width : -1);
});

test("no two boxes of a tree cover one another", () => {
  const deep: TreeNode[] = [ROOT];
  for (let place = 1; place < 60; place++) deep.push({ parent: Math.floor((place - 1) / 2), start: 0, tokens: place, cached: 0 });
  const { boxes } = layOut(deep);
  for (const one of boxes) {
    for (const other of boxes) {
      const apart = one === other || one.x + one.width <= other.x || other.x + other.width <= one.x ||
        one.row + one.rows <= other.row || other.row + other.rows <= one.row;
      assert.ok(apart, `${one.place} and ${other.place}`);
    }
  }
});

test("an empty tree has no boxes", () => {
  assert.deepEqual(layOut([ROOT]), { boxes: [], width: 0, rows: 0 });
  assert.deepEqual(layOut([]), { boxes: [], width: 0, rows: 0 });
});

test("what running requests share is said in words", () => {
  assert.deepEqual(sharedBeginnings(TREE), [{ requests: 8, tokens: 100 }]);
});

test("steps older than a minute are dropped, and a silent model keeps its last word", () => {
  const found = history(frame(1000, runner([step(900)])), frame(2000 + KEPT_MS, runner([step(1990 + KEPT_MS)])), frame(2250 + KEPT_MS, null));
  assert.deepEqual(found.steps.map((one) => one.began_ms), [1990 + KEPT_MS]);
  assert.equal(found.samples.length, 1);
  assert.equal(found.samples[0]?.promptRate, 200);
  assert.equal(found.runner?.generated_tokens, 25);
});

test("a look at the cache stays until the next one", () => {
  const cache = { cells: [], tree: TREE, tokens: 1 };
  const found = history(frame(1, runner([], { cache })), frame(2, runner([])), frame(3, null));
  assert.equal(found.cache, cache);
  assert.deepEqual([found.cacheMs, found.runnerMs], [1, 2]);
});

test("requests that wait for a slot have lanes after the others, with their wait so far", () => {
  const found = history(frame(1200, runner([step(1000, [3, 0, 8, true, 0, 0])], { waiting: 2, waits_ms: [900, 50] })));
  const { bars, lanes } = timelineOf(found, 900, 1200);
  assert.deepEqual(lanes, [0, 3, -1, -1]);
  assert.deepEqual(bars.filter(({ kind }) => kind === "wait").map(({ lane, from, to }) => [lane, from, to]), [[2, 300, 1200], [3, 1150, 1200]]);
  assert.deepEqual(timelineOf(found, 900, 1100).lanes, [0, 3, -1]);
});

test("the time line has a lane for each request, its prompt, answer and wait", () => {
  const request = { request: 4, prompt_tokens: 9, cached_tokens: 0, computed_tokens: 9, generated_tokens: 1, waited_ms: 30 };
  const found = history(frame(1200, runner([step(1000, [3, 0, 8, true, 0, 0]), step(1010, [3, 8, 1, false, 0, 0], [4, 0, 9, true, 0, 0])], { requests: [request] })));
  const { bars, lanes } = timelineOf(found, 900, 1200);
  assert.deepEqual(lanes, [0, 3, 4]);
  assert.deepEqual(bars.map(({ lane, kind, from, to }) => [lane, kind, from, to]), [
    [2, "wait", 980, 1010],
    [0, "batch", 1000, 1010], [1, "prompt", 1000, 1010],
    [0, "batch", 1010, 1020], [1, "answer", 1010, 1020], [2, "prompt", 1010, 1020],
  ]);
});

test("a trace has lanes with names, times in microseconds, and no negative durations", () => {
  const found = history(frame(1200, runner([step(1000, [3, 0, 8, true, 0, 0]), step(1010.5, [3, 8, 1, false, 0, 0])])));
  const { traceEvents } = JSON.parse(toTrace([found])) as { traceEvents: Record<string, unknown>[] };
  const names = traceEvents.filter((one) => one.ph === "M").map((one) => (one.args as { name: string }).name);
  assert.deepEqual(names, ["m", "device", "request 3"]);
  const spans = traceEvents.filter((one) => one.ph === "X");
  assert.deepEqual(spans.map((one) => [one.name, one.tid, one.ts, one.dur]), [
    ["batch", 0, 0, 10_000], ["prompt", 3, 0, 10_000], ["batch", 0, 10_500, 10_000], ["answer", 3, 10_500, 10_000],
  ]);
});

test("a trace has a lane for each request that waits for a slot, and begins with the first that did", () => {
  const found = history(frame(1200, runner([step(1000, [3, 0, 8, true, 0, 0])], { waiting: 2, waits_ms: [700, 100] })));
  const { traceEvents } = JSON.parse(toTrace([found])) as { traceEvents: { ph: string; name: string; tid: number; ts: number; dur: number; args: { name: string } }[] };
  const names = traceEvents.filter((one) => one.ph === "M").map((one) => one.args.name);
  assert.deepEqual(names, ["m", "device", "request 3", "waiting, place 1", "waiting, place 2"]);
  const waits = traceEvents.filter((one) => one.ph === "X" && one.name === "waiting");
  assert.deepEqual(waits.map((one) => [one.ts, one.dur]), [[0, 700_000], [600_000, 100_000]]);
  assert.equal(new Set(waits.map((one) => one.tid)).size, 2);
});

test("in a lane of a trace a wait ends where the first step begins", () => {
  const began = 1_795_658_400_123.456; // at such a time a number has steps of a quarter of a microsecond
  const steps = [step(began, [3, 0, 8, true, 0, 0]), step(began + 10, [3, 8, 1, false, 0, 0])];
  const request = { request: 3, prompt_tokens: 8, cached_tokens: 0, computed_tokens: 8, generated_tokens: 1 };
  for (const waited_ms of [4.6507, 1.1117, 700.3331, 7.9743]) {
    const found = history(frame(began + 50, runner(steps, { requests: [{ ...request, waited_ms }] })));
    const { traceEvents } = JSON.parse(toTrace([found])) as { traceEvents: { ph: string; tid: number; ts: number; dur: number }[] };
    const lane = traceEvents.filter((one) => one.ph === "X" && one.tid === 3);
    assert.equal(lane.length, 3);
    for (const [at, { ts }] of lane.entries()) {
      const before = lane[at - 1];
      if (before) assert.equal(before.ts + before.dur, ts);
      assert.ok(Number.isInteger(ts));
    }
  }
});

test("drafts are told with the step of the answer that they are of", () => {
  const found = history(frame(1200, runner([step(1000, [3, 8, 5, false, 4, 3], [4, 9, 1, false, 0, 0])])));
  const { bars } = timelineOf(found, 900, 1200);
  assert.deepEqual(bars.map((bar) => bar.drafts), [undefined, { all: 4, accepted: 3 }, undefined]);
  const { traceEvents } = JSON.parse(toTrace([found])) as { traceEvents: { ph: string; name: string; args: unknown }[] };
  const answers = traceEvents.filter((one) => one.ph === "X" && one.name === "answer");
  assert.deepEqual(answers.map((one) => one.args), [{ from: 8, tokens: 5, drafts: 4, accepted: 3 }, { from: 9, tokens: 1 }]);
});

test("an empty trace is a trace", () => {
  assert.deepEqual(JSON.parse(toTrace([])), { displayTimeUnit: "ms", traceEvents: [] });
});

test("a quantile is the bound under which that share lies", () => {
  const found = { bounds: [0.1, 0.2, 0.5], counts: [5, 4, 0, 1] };
  assert.equal(quantile(found, 0.5), 0.1);
  assert.equal(quantile(found, 0.9), 0.2);
  assert.equal(quantile(found, 1), Infinity);
  assert.equal(quantile({ bounds: [1], counts: [0, 0] }, 0.5), null);
});
