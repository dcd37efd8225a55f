/** Writes what was seen as a trace in Chrome's format, which Perfetto opens. */

import { INSIDE } from "./texts.ts";
import type { ModelHistory, Step } from "./live.ts";

interface TraceEvent {
  ph: "X" | "M";
  name: string;
  pid: number;
  tid: number;
  ts?: number;
  dur?: number;
  args: Record<string, unknown>;
}

const DEVICE = 0;

const WAITING_FROM = 1_000_000_000; // lanes of requests without a slot, which have no number yet

/**
 * Return a trace: a process for each model, in it a lane for the device, each request, and each that
 * waits for a slot. Slices of a lane must not cross: times are whole microseconds since the first one,
 * so that one ends exactly where the next one begins.
 */
export function toTrace(models: Iterable<ModelHistory>): string {
  const lanes = [...models].map((history, at) => modelSlices(history, at + 1));
  const slices = lanes.flatMap((model) => model.slices);
  const origin = slices.reduce((least, { began }) => Math.min(least, began), Infinity);
  const since = (ms: number) => Math.round((ms - origin) * 1000);
  const moved = slices.map(({ began, ended, ...rest }): TraceEvent => ({
    ph: "X", ...rest, ts: since(began), dur: since(ended) - since(began),
  }));
  return JSON.stringify({ displayTimeUnit: "ms", traceEvents: [...lanes.flatMap((model) => model.names), ...moved] });
}

/** Something that took its time, in milliseconds since 1970. */
interface Slice extends Pick<TraceEvent, "name" | "pid" | "tid" | "args"> {
  began: number;
  ended: number;
}

function modelSlices({ model, steps, waits, runner, runnerMs }: ModelHistory, pid: number): { names: TraceEvent[]; slices: Slice[] } {
  const requests = new Map<number, number>(); // and when their first step began
  for (const step of steps) {
    for (const [request] of step.parts) if (!requests.has(request)) requests.set(request, step.began_ms);
  }
  const waiting = runner?.waits_ms ?? [];
  const named = (name: string, tid: number, text: string): TraceEvent => ({ ph: "M", name, pid, tid, args: { name: text } });
  const slice = (name: string, tid: number, began: number, ended: number, args: Slice["args"] = {}): Slice => ({ name, pid, tid, began, ended, args });
  return {
    names: [
      named("process_name", DEVICE, model.name),
      named("thread_name", DEVICE, INSIDE.device),
      ...[...requests.keys()].map((request) => named("thread_name", request, INSIDE.request(request))),
      ...waiting.map((_, at) => named("thread_name", WAITING_FROM + at, INSIDE.waitingRequest(at + 1))),
    ],
    slices: [
      ...[...requests].flatMap(([request, began]) => {
        const wait = waits.get(request) ?? 0;
        return wait >= 1 ? [slice(INSIDE.waited, request, began - wait, began)] : [];
      }),
      ...waiting.map((wait, at) => slice(INSIDE.waited, WAITING_FROM + at, runnerMs - wait, runnerMs)),
      ...steps.flatMap((step) => {
        const ended = step.began_ms + step.compute_ms;
        return [
          slice(step.kind, DEVICE, step.began_ms, ended, described(step)),
          ...step.parts.map(([request, start, tokens, isPrompt, drafts, accepted]) =>
            slice(isPrompt ? "prompt" : "answer", request, step.began_ms, ended, { from: start, tokens, ...(drafts ? { drafts, accepted } : {}) }),
          ),
        ];
      }),
    ],
  };
}

function described(step: Step): Record<string, unknown> {
  return {
    tokens: step.parts.reduce((all, [, , tokens]) => all + tokens, 0),
    requests: step.parts.length,
    graph: step.is_new_graph ? "built" : "reused",
    plan_ms: step.plan_ms,
    wait_ms: step.wait_ms,
    sample_ms: step.sample_ms,
  };
}
