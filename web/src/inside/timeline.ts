/** Which bars the time line of batches has, and in which lanes. */

import type { ModelHistory } from "./live.ts";

export interface Bar {
  lane: number;
  from: number;
  to: number;
  kind: "newGraph" | "batch" | "encoder" | "prompt" | "answer" | "wait";
  request: number;
  /** Guesses of next tokens in this step: how many were right. */
  drafts?: { all: number; accepted: number };
}

export interface Timeline {
  bars: Bar[];
  /** The request of each lane; the first lane is the device's, and the last ones those that wait. */
  lanes: number[];
}

export const DEVICE = 0;
/** A request has a number once it has a slot. */
export const WAITING = -1;
const MAX_LANES = 16;
const MAX_WAITING = 8;

/** Return what happened from one moment to another (ms since 1970); the newest requests have lanes. */
export function timelineOf({ steps, waits, runner, runnerMs }: ModelHistory, from: number, to: number): Timeline {
  const shown = steps.filter((step) => step.began_ms < to && step.began_ms + step.compute_ms > from);
  const firsts = new Map<number, number>();
  for (const step of steps) {
    for (const [request] of step.parts) if (!firsts.has(request)) firsts.set(request, step.began_ms);
  }
  const seen = new Set(shown.flatMap((step) => step.parts.map(([request]) => request)));
  const requests = [...seen].sort((one, other) => one - other).slice(-MAX_LANES);
  const laneOf = new Map(requests.map((request, at) => [request, at + 1]));
  const bars: Bar[] = [];
  for (const [request, lane] of laneOf) {
    const began = firsts.get(request) ?? from;
    const wait = waits.get(request) ?? 0;
    if (wait >= 1 && began > from) bars.push({ lane, from: began - wait, to: began, kind: "wait", request });
  }
  for (const step of shown) {
    const end = step.began_ms + step.compute_ms;
    const kind = step.kind !== "batch" ? "encoder" : step.is_new_graph ? "newGraph" : "batch";
    bars.push({ lane: DEVICE, from: step.began_ms, to: end, kind, request: DEVICE });
    for (const [request, , , isPrompt, all, accepted] of step.parts) {
      const lane = laneOf.get(request);
      const bar: Bar = { lane: lane ?? 0, from: step.began_ms, to: end, kind: isPrompt ? "prompt" : "answer", request };
      if (lane) bars.push(all ? { ...bar, drafts: { all, accepted } } : bar);
    }
  }
  const lanes = [DEVICE, ...requests];
  for (const wait of from < runnerMs ? (runner?.waits_ms.slice(0, MAX_WAITING) ?? []) : []) {
    if (runnerMs - wait > to) continue;
    bars.push({ lane: lanes.length, from: runnerMs - wait, to: runnerMs, kind: "wait", request: WAITING });
    lanes.push(WAITING);
  }
  return { bars, lanes };
}
