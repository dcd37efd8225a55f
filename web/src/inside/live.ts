/** What `GET /api/live` tells, and what the page keeps of it. */

export interface Distribution {
  /** Upper bounds of the ranges, in seconds; the last range has none. */
  bounds: number[];
  counts: number[];
}

/** The request, the position of its first token, how many tokens, whether they are of the prompt, how many are drafts, and right ones. */
export type Part = [request: number, start: number, tokens: number, isPrompt: boolean, drafts: number, accepted: number];

export interface Step {
  kind: "batch" | "image" | "sound";
  began_ms: number;
  compute_ms: number;
  plan_ms: number;
  wait_ms: number;
  sample_ms: number;
  is_new_graph: boolean;
  parts: Part[];
}

export interface RunningRequest {
  request: number;
  prompt_tokens: number;
  cached_tokens: number;
  computed_tokens: number;
  generated_tokens: number;
  waited_ms: number;
}

export interface CellUse {
  kind: "tokens" | "states";
  window: number | null;
  total: number;
  in_use: number;
  /** Cells that keep a row for later requests. */
  cached: number;
  each: number;
  /** A request's number, or 0: several, -1: cached, -2: empty. */
  owners: number[];
  ages: number[];
}

export interface TreeNode {
  parent: number;
  start: number;
  tokens: number;
  cached: number;
  sharing?: number;
  requests?: number[];
  states?: number;
  hidden?: number;
}

export interface Cache {
  cells: CellUse[];
  tree: TreeNode[];
  tokens: number;
}

export interface Runner {
  interval_ms: number;
  steps: Step[];
  lost_steps: number;
  requests: RunningRequest[];
  waiting: number;
  longest_wait_ms: number;
  /** How long each of those that wait for a slot has waited, the next one first. */
  waits_ms: number[];
  prompt_tokens: number;
  generated_tokens: number;
  python_share: number | null;
  graphs_built: number;
  graphs_reused: number;
  recording_ms: number;
  cache: Cache | null;
}

export interface LiveModel {
  name: string;
  engine: string;
  context: number;
  slots: number;
  requests: number;
  device_bytes: number;
  time_to_first_token: Distribution;
  time_between_tokens: Distribution;
  runner: Runner | null;
}

export interface Frame {
  number: number;
  time_ms: number;
  waiting: number;
  processes: { name: string; memory_bytes: number }[];
  models: LiveModel[];
}

/** How it went in the time of one frame. */
export interface Sample {
  time_ms: number;
  promptRate: number;
  answerRate: number;
  running: number;
  waiting: number;
}

/** What is kept of a model. */
export interface ModelHistory {
  model: LiveModel;
  steps: readonly Step[];
  samples: readonly Sample[];
  /** How long each request waited for its slot. */
  waits: ReadonlyMap<number, number>;
  /** The runner's newest word, and the newest look at the cache, with the times of their frames. */
  runner: Runner | null;
  runnerMs: number;
  cache: Cache | null;
  cacheMs: number;
}

export interface History {
  frame: Frame | null;
  models: ReadonlyMap<string, ModelHistory>;
}

export const NOTHING: History = { frame: null, models: new Map() };
export const KEPT_MS = 60_000;
const MAX_STEPS = 20_000;
const MAX_WAITS = 1000;

/** Return a history with one more frame; what is older than a minute is dropped. */
export function withFrame(history: History, frame: Frame): History {
  const models = frame.models.map((model): [string, ModelHistory] => [
    model.name,
    withModel(history.models.get(model.name), model, frame.time_ms),
  ]);
  return { frame, models: new Map(models) };
}

function withModel(old: ModelHistory | undefined, model: LiveModel, now: number): ModelHistory {
  const { runner } = model;
  const steps = [...(old?.steps ?? []), ...(runner?.steps ?? [])];
  const first = steps.findIndex((step) => step.began_ms > now - KEPT_MS);
  const waits = new Map(old?.waits ?? []);
  for (const one of runner?.requests ?? []) waits.set(one.request, one.waited_ms);
  const samples = old?.samples.filter((one) => one.time_ms > now - KEPT_MS) ?? [];
  return {
    model,
    steps: first < 0 ? [] : steps.slice(Math.max(first, steps.length - MAX_STEPS)),
    samples: runner ? [...samples, sampleOf(runner, now)] : samples,
    waits: new Map([...waits].slice(-MAX_WAITS)),
    runner: runner ?? old?.runner ?? null,
    runnerMs: runner ? now : (old?.runnerMs ?? now),
    cache: runner?.cache ?? old?.cache ?? null,
    cacheMs: runner?.cache ? now : (old?.cacheMs ?? now),
  };
}

function sampleOf(runner: Runner, now: number): Sample {
  const seconds = runner.interval_ms / 1000 || 1;
  return {
    time_ms: now,
    promptRate: runner.prompt_tokens / seconds,
    answerRate: runner.generated_tokens / seconds,
    running: runner.requests.length,
    waiting: runner.waiting,
  };
}

/** Return the bound under which this share of a distribution lies, in seconds; null: unknown. */
export function quantile({ bounds, counts }: Distribution, share: number): number | null {
  const total = counts.reduce((all, count) => all + count, 0);
  let below = 0;
  for (const [at, count] of counts.entries()) {
    below += count;
    if (total > 0 && below >= share * total) return bounds[at] ?? Infinity;
  }
  return null;
}
