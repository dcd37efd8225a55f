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
  const server = { chat } as unknown as Server;
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
      eval_count: 3, eval_duration: 1.5e9, truncated: 2,
    }),
  ]);
  const { usage, reasoningMs = -1, ...rest } = turn;
  assert.deepEqual(rest, { content: "AB", reasoning: "Hm", state: "done" });
  assert.ok(reasoningMs >= 0 && usage && usage.firstTokenMs >= 0);
  const { firstTokenMs: _, ...counts } = usage;
  assert.deepEqual(counts, { promptTokens: 9, cachedTokens: 4, tokens: 3, tokensPerSecond: 2, droppedTokens: 2 });
});

test("an answer that goes on keeps what it had", async () => {
  const turn = await turnOf([line("B"), line("", { done: true, done_reason: "length" })], undefined, "A");
  assert.equal(turn.content, "AB");
  assert.equal(turn.state, "limit");
});

test("a stopped answer keeps its text and is not an error", async () => {
  const turn = await turnOf([line("A")], new DOMException("stopped", "AbortError"));
  assert.deepEqual(turn, { content: "A", state: "stopped" });
});

test("a full queue is reported with the time to wait", async () => {
  const turn = await turnOf([], new ApiError("too many requests wait", 503, 5));
  assert.deepEqual(turn, { state: "failed", error: "too many requests wait. Try again in 5 s." });
});

test("a stream that ends early is an error, and its text stays", async () => {
  const turn = await turnOf([line("A")]);
  assert.deepEqual([turn.state, turn.content], ["failed", "A"]);
  assert.match(turn.error ?? "", /ended early/);
});
