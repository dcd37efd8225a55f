import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../src/api/http.ts";
import type { ChatLine, Server } from "../src/api/server.ts";
import { answer } from "../src/chat/answering.ts";
import type { Turn } from "../src/chat/tree.ts";

const REQUEST = { model: "m", messages: [], options: {} };

function line(content: string, rest: Partial<ChatLine> = {}): ChatLine {
  return { message: { content }, done: false, ...rest };
}

/** Return what a turn has become after an answer of these lines, or of an error after them. */
async function turnOf(lines: ChatLine[], failure?: Error, before = ""): Promise<Partial<Turn>> {
  const abort = new AbortController();
  // eslint-disable-next-line @typescript-eslint/require-await
  async function* chat() {
    yield* lines;
    if (failure?.name === "AbortError") abort.abort();
    if (failure) throw failure;
  }
  const turn: Partial<Turn> = {};
  // eslint-disable-next-line @typescript-eslint/require-await
  const server = { chat, loaded: async () => [{ name: "m" }] } as unknown as Server;
  await answer(server, REQUEST, { content: before }, abort.signal, (change) => Object.assign(turn, change));
  return turn;
}

test("an answer has its text, its reasoning, and its counts", async () => {
  const turn = await turnOf([
    line("", { message: { thinking: "Hm" } }),
    line("A"),
    line("B"),
    line("", {
      done: true, done_reason: "stop", prompt_eval_count: 9, prompt_eval_cached_count: 4,
      eval_count: 3, eval_duration: 1.5e9, truncated: 2, load_duration: 1e6,
    }),
  ]);
  const { usage, reasoningMs = -1, ...rest } = turn;
  assert.deepEqual(rest, { content: "AB", reasoning: "Hm", state: "done" });
  assert.ok(reasoningMs >= 0 && usage && usage.firstTokenMs >= 0);
  const { firstTokenMs: _, ...counts } = usage;
  assert.deepEqual(counts, { promptTokens: 9, cachedTokens: 4, tokens: 3, tokensPerSecond: 2, droppedTokens: 2 });
});

test("an answer that goes on keeps what it had", async () => {
  const end = line("", { done: true, done_reason: "length", limit: "repetition" });
  const turn = await turnOf([line("B"), end], undefined, "A");
  assert.equal(turn.content, "AB");
  assert.deepEqual([turn.state, turn.limit], ["limit", "repetition"]);
});

test("a stopped answer keeps its text and is not an error", async () => {
  const turn = await turnOf([line("A")], new DOMException("stopped", "AbortError"));
  assert.deepEqual(turn, { content: "A", state: "stopped" });
});

test("a stopped answer has the counts until then", async () => {
  const timings = { cache_n: 4, prompt_n: 5, predicted_n: 2, predicted_per_second: 8 };
  const turn = await turnOf([line("A", { timings: { ...timings, predicted_n: 1 } }), line("B", { timings })], new DOMException("stopped", "AbortError"));
  const { firstTokenMs = -1, ...counts } = turn.usage ?? {};
  assert.equal(turn.state, "stopped");
  assert.ok(firstTokenMs >= 0);
  assert.deepEqual(counts, { promptTokens: 9, cachedTokens: 4, tokens: 2, tokensPerSecond: 8, droppedTokens: 0 });
});

test("a stopped answer that went on counts what of the conversation did not fit", async () => {
  const timings = { cache_n: 4, prompt_n: 252, predicted_n: 2, predicted_per_second: 8 };
  const turn = await turnOf([line("B", { timings, truncated: 1677 })], new DOMException("stopped", "AbortError"), "A");
  assert.deepEqual([turn.state, turn.usage?.droppedTokens, turn.usage?.isMore], ["stopped", 1677, true]);
});

test("a full queue is reported with the time to wait", async () => {
  const turn = await turnOf([], new ApiError("too many requests wait", 503, 5));
  assert.deepEqual(turn, { state: "failed", error: "Too many requests wait. Try again in 5 s." });
});

test("a stream that ends early is an error, and its text stays", async () => {
  const turn = await turnOf([line("A")]);
  assert.deepEqual([turn.state, turn.content], ["failed", "A"]);
  assert.match(turn.error ?? "", /ended early/);
});

test("the time of loading is not that of the first token", async () => {
  const turn: Partial<Turn> = {};
  const told: (boolean | undefined)[] = [];
  let isLoaded = false;
  const loaded = () => Promise.resolve([{ name: "m", loading: !isLoaded }]);
  async function* chat() {
    while (turn.isLoading === undefined) await Promise.resolve();
    isLoaded = true;
    while (turn.isLoading) await new Promise(setImmediate);
    yield line("A");
    yield line("", { done: true, done_reason: "stop", load_duration: 1e15 });
  }
  const server = { chat, loaded } as unknown as Server;
  await answer(server, REQUEST, { content: "" }, new AbortController().signal, (change) => {
    if ("isLoading" in change) told.push(change.isLoading);
    Object.assign(turn, change);
  });
  assert.deepEqual(told, [true, false]);
  assert.deepEqual([turn.usage?.loadMs, turn.usage?.firstTokenMs], [1e9, 0]);
});
