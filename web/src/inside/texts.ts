/** The texts of this view; they are loaded with it. */

import { bytes, duration } from "../texts.ts";

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
  noModel: "No model is in memory. Load one in Models, or ask one something.",
  silent: "This model's engine does not say what it does: only latencies and memory are known.",
  lost: "The connection was lost. Trying again…",
  timeline: "Batches",
  rates: "Tokens per second",
  latencies: "Latencies",
  first: "Time to first token",
  between: "Time between tokens",
  memory: "Memory",
  cells: "Cache cells",
  cellsOf: (kind: string, window: number | null) =>
    kind === "states" ? "States of recurrent layers" : window ? `Layers with a window of ${count(window)}` : "Layers that read everything",
  tree: "Prefix tree",
  byOwner: "By owner",
  byAge: "By age",
  colour: "Colour",
  prompt: "prompt",
  answer: "answer",
  waited: "waiting for a slot",
  newGraph: "new graph",
  device: "device",
  request: (number: number) => `request ${number}`,
  shared: "several requests",
  cached: "cached",
  empty: "empty",
  newest: "freed just now",
  oldest: "freed long ago",
  inUse: (used: number, total: number) => `${count(used)} of ${count(total)} in use`,
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
  timelineText: (seconds: number, batches: number, requests: number, prompt: number, answer: number) =>
    `Last ${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s: ${plural(batches, "batch", "batches")}, ${plural(requests, "request")}, ` +
    `${plural(prompt, "prompt token")}, ${plural(answer, "answer token")}.`,
  ratesText: (prompt: number, answer: number) =>
    `Now ${count(Math.round(prompt))} prompt and ${count(Math.round(answer))} answer tokens per second.`,
  latencyText: (total: number, half: number | null, most: number | null) =>
    total ? `${count(total)} measured; half under ${bound(half)}, 95 % under ${bound(most)}.` : "Nothing measured yet.",
  treeText: (nodes: number, tokens: number) => `${plural(nodes, "branch", "branches")}, ${plural(tokens, "token")}.`,
  sharing: (requests: number, tokens: number) => `${requests} requests share their first ${plural(tokens, "token")}.`,
  hidden: (nodes: number) => `${plural(nodes, "branch", "branches")} more.`,
  states: (states: number) => plural(states, "state"),
  nodeText: (tokens: number, start: number, cached: number) => `${plural(tokens, "token")} from ${count(start)}, ${count(cached)} cached`,
  sharedBy: (requests: number) => `${requests} requests`,
  tableOfTree: "As a table",
  columns: ["From", "Tokens", "Cached", "Requests", "States"],
  seconds: (seconds: number) => `${seconds} s`,
  ago: (seconds: number) => (seconds < 0.05 ? "now" : `−${seconds.toFixed(seconds < 10 ? 1 : 0)} s`),
  size: bytes,
} as const;

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

function bound(seconds: number | null): string {
  if (seconds === null) return "?";
  return seconds === Infinity ? "more than was counted" : duration(seconds * 1000);
}
