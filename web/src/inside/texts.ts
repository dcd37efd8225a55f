/** The texts of the view from inside, which are loaded with it. */

import { bytes, count, duration, grouped } from "../units.ts";

export const INSIDE = {
  title: "Inside",
  pause: "Pause",
  resume: "Resume",
  zoomIn: "Zoom in",
  zoomOut: "Zoom out",
  earlier: "Earlier",
  later: "Later",
  save: "Save trace",
  saveHint: "Save the last minute as a trace for Perfetto",
  model: "Model",
  waitingForServer: "Waiting for the server…",
  noModel: "No model is in memory. One is loaded when it is asked something.",
  loadOne: "Load one in Models",
  silent: "This model's engine does not say what it does: only latencies and memory are known.",
  lost: "The connection was lost. Trying again…",
  timeline: "Batches",
  rates: "Tokens per second",
  first: "Time to first token",
  between: "Time between tokens",
  memory: "Memory",
  cells: "Cache cells",
  cellsOf: (kind: string, window: number | null) =>
    kind === "states" ? "States of recurrent layers" : window ? `Layers with a window of ${grouped(window)}` : "Layers that read everything",
  layers: {
    title: "Layers",
    watch: "Watch layers",
    stop: "Stop watching",
    about: "What each layer makes of the token that is being written: how long its output is, which token the model would write next if it " +
      "ended there, and the experts that its router chooses. Nothing of it is computed until you watch.",
    waiting: "No answer is being written now.",
    ended: "No answer is being written now; this was the last token that was seen.",
    layer: "Layer",
    norm: "Norm",
    next: "Next token if the model ended here",
    experts: (count: number) => `Experts, of ${grouped(count)}`,
    nothing: "no text",
    same: "the token of the last layer",
    other: "another one",
    strength: "The stronger the colour, the more probable.",
    took: (ms: number) => `computed in ${ms.toFixed(0)} ms`,
    token: (request: number, position: number, text: string) => `Request ${String(request)}, token ${grouped(position)}: ${text}`,
    settled: (layer: number, text: string) => `→ ${text}, the likeliest next token from layer ${String(layer)} on.`,
  },
  tree: "Prefix tree",
  byOwner: "By owner",
  byAge: "By age",
  colour: "Colour",
  prompt: "prompt",
  answer: "answer",
  accepted: "drafts accepted",
  refused: "drafts refused",
  draftsText: (accepted: number, drafts: number) => `${grouped(accepted)} of ${count(drafts, "draft")} accepted.`,
  waited: "waiting",
  waits: "waiting",
  newGraph: "new graph",
  device: "device",
  request: (number: number) => `request ${number}`,
  waitingRequest: (place: number) => `waiting, place ${place}`,
  shared: "several requests",
  cached: "cached",
  empty: "empty",
  newest: "freed just now",
  oldest: "freed long ago",
  inUse: (used: number, cached: number, total: number) => `${grouped(used)} in use, ${grouped(cached)} cached, of ${grouped(total)}`,
  facts: {
    running: "running",
    waiting: "waiting",
    prompt: "prompt tokens/s",
    answer: "answer tokens/s",
    batch: "requests/batch",
    step: "per step",
    python: "Python's share",
    graphs: "graphs reused",
    cost: "cost of looking",
  },
  timelineText: (seconds: number, back: number, batches: number, requests: number, prompt: number, answer: number, waiting: number) =>
    `${period(seconds, back)}: ${count(batches, "batch", "batches")}, ${count(requests, "request")}, ` +
    `${count(prompt, "prompt token")}, ${count(answer, "answer token")}.${waiting ? ` ${count(waiting, "request waits", "requests wait")}.` : ""}`,
  ratesText: (prompt: number, answer: number) =>
    `Now ${grouped(Math.round(prompt))} prompt and ${grouped(Math.round(answer))} answer tokens per second.`,
  latencyText: (total: number, half: number | null, most: number | null) =>
    total ? `${grouped(total)} measured; half under ${bound(half)}, 95 % under ${bound(most)}.` : "Nothing measured yet.",
  lookedAt: (seconds: number) => (seconds < 0.05 ? "now" : `${seconds.toFixed(1)} s ago`),
  late: (seconds: number) => `The model told this ${seconds.toFixed(1)} s ago: it computes a long step.`,
  legend: {
    number: "A number counts tokens.",
    shared: "×n: shared by n running requests",
    request: "of one running request",
    cached: "in the cache",
    lost: "no longer in the cache",
    state: "kept state",
  },
  treeText: (nodes: number, tokens: number) => `${count(nodes, "branch", "branches")}, ${count(tokens, "token")}.`,
  sharing: (requests: number, tokens: number) => `${count(requests, "request")} share their first ${count(tokens, "token")}.`,
  hidden: (nodes: number) => `${count(nodes, "branch", "branches")} more.`,
  states: (states: number) => count(states, "state"),
  nodeText: (tokens: number, start: number, cached: number) => `${count(tokens, "token")} from ${grouped(start)}, ${grouped(cached)} cached`,
  sharedBy: (requests: number) => count(requests, "request"),
  tableOfTree: "As a table",
  columns: ["From", "Tokens", "Cached", "Requests", "States"],
  milliseconds: (ms: number) => `${ms.toFixed(1)} ms`,
  seconds: (seconds: number) => `${seconds} s`,
  ago: (seconds: number, digits: number) => (seconds < 0.005 ? "now" : `−${seconds.toFixed(digits)} s`),
  most: (rate: number) => `up to ${grouped(Math.round(rate))} tokens/s`,
  size: bytes,
  memoryCounts: "What each process has in memory now: Python, libraries, and the parts of files that are there. Memory of GPUs is not counted.",
} as const;

function period(seconds: number, back: number): string {
  const length = `${seconds < 1 || seconds >= 10 ? String(seconds) : seconds.toFixed(1)} s`;
  return back ? `${length} until ${back.toFixed(2)} s ago` : `Last ${length}`;
}

function bound(seconds: number | null): string {
  if (seconds === null) return "?";
  return seconds === Infinity ? "more than was counted" : duration(seconds * 1000);
}
