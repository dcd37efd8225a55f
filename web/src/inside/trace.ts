/** Writes what was seen as a trace in Chrome's format, which Perfetto opens. */

import { INSIDE } from "../texts.ts";
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

/** Return a trace: a process for each model, in it a lane for the device, each request, and each that waits for a slot. */
export function toTrace(models: Iterable<ModelHistory>): string {
  const events = [...models].flatMap((history, at) => modelEvents(history, at + 1));
  const origin = events.reduce((least, { ts = least }) => Math.min(least, ts), Infinity);
  const moved = events.map((event) => (event.ts === undefined ? event : { ...event, ts: event.ts - origin }));
  return JSON.stringify({ displayTimeUnit: "ms", traceEvents: moved });
}

function modelEvents({ model, steps, waits, runner, runnerMs }: ModelHistory, pid: number): TraceEvent[] {
  const requests = new Map<number, number>(); // and when their first step began
  for (const step of steps) {
    for (const [request] of step.parts) if (!requests.has(request)) requests.set(request, step.began_ms);
  }
  const named = (name: string, tid: number, text: string): TraceEvent => ({ ph: "M", name, pid, tid, args: { name: text } });
  const during = (name: string, tid: number, began: number, took: number, args: TraceEvent["args"]): TraceEvent => ({
    ph: "X", name, pid, tid, ts: began * 1000, dur: took * 1000, args,
  });
  const waited = [...requests].flatMap(([request, began]) => {
    const wait = waits.get(request) ?? 0;
    return wait >= 1 ? [during(INSIDE.waited, request, began - wait, wait, {})] : [];
  });
  const waiting = (runner?.waits_ms ?? []).flatMap((wait, at) => [
    named("thread_name", WAITING_FROM + at, INSIDE.waitingRequest(at + 1)),
    during(INSIDE.waited, WAITING_FROM + at, runnerMs - wait, wait, {}),
  ]);
  return [
    named("process_name", DEVICE, model.name),
    named("thread_name", DEVICE, INSIDE.device),
    ...[...requests.keys()].map((request) => named("thread_name", request, INSIDE.request(request))),
    ...waited,
    ...waiting,
    ...steps.flatMap((step) => [
      during(step.kind, DEVICE, step.began_ms, step.compute_ms, described(step)),
      ...step.parts.map(([request, start, tokens, isPrompt]) =>
        during(isPrompt ? "prompt" : "answer", request, step.began_ms, step.compute_ms, { from: start, tokens }),
      ),
    ]),
  ];
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
