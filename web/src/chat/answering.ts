/** One answer while it is streamed. */

import { ApiError, messageOf } from "../api/http.ts";
import { pause } from "../api/pause.ts";
import type { ChatLine, ChatRequest, Server, Timings } from "../api/server.ts";
import { TEXTS } from "../texts.ts";
import { worded } from "./field_names.ts";
import { tokensOf } from "./token_text.ts";
import type { Call, Turn, Usage } from "./tree.ts";

const FRAME_MS = 40;
const LOADING_MS = 250; // between two questions whether a model is loaded

type Change = Partial<Turn>;
type Before = Pick<Turn, "content" | "tokens" | "tokensFrom">;

/**
 * Ask for an answer, and report its turn's changes until it has ended; nothing is thrown.
 *
 * @param before what the turn has already, if its answer is continued.
 * @param files the names of each message's files.
 */
export async function answer(
  server: Server,
  request: ChatRequest,
  before: Before,
  signal: AbortSignal,
  report: (change: Change) => void,
  files: readonly (readonly string[])[] = [],
): Promise<void> {
  const clock = new Clock();
  const tokens = before.tokens ? [...before.tokens] : [];
  const calls: Call[] = [];
  let { content } = before;
  const more = content ? { isMore: true } : {};
  let reasoning = "";
  let hasTokens = false;
  let timings: Timings | undefined;
  let dropped = 0;
  const now = (): Change => ({
    content,
    ...(hasTokens ? { tokens: [...tokens], tokensFrom: before.tokensFrom ?? 0 } : {}),
    ...(calls.length ? { calls: [...calls] } : {}),
    ...(reasoning ? { reasoning, reasoningMs: clock.reasoningMs } : {}),
    ...(timings ? { usage: { ...usageUntilNow(timings, dropped, clock), ...more } } : {}),
  });
  const pace = new Pace(() => report(now()));
  const hasBegun = new AbortController(); // a text has come, or the end
  let wasLoading = false;
  void watchLoading(server, request.model, hasBegun.signal, (isLoading) => {
    wasLoading = true;
    if (!isLoading) clock.loaded();
    report({ isLoading });
  });
  try {
    for await (const line of server.chat(request, signal)) {
      const { content: text = "", thinking = "", tool_calls = [] } = line.message;
      clock.see(text !== "" || tool_calls.length > 0, thinking !== "");
      hasBegun.abort();
      timings = line.timings ?? timings;
      dropped = line.truncated ?? dropped;
      content += text;
      reasoning += thinking;
      calls.push(...tool_calls.map((call) => ({ name: call.function.name, arguments: call.function.arguments })));
      if (line.logprobs && !thinking) {
        tokens.push(...tokensOf(line.logprobs));
        hasTokens = true;
      }
      if (line.done) {
        pace.end();
        const { limit } = line;
        report({ ...now(), state: stateOf(line), usage: { ...usageOf(line, clock.firstTokenMs, wasLoading), ...more }, ...(limit ? { limit } : {}) });
        return;
      }
      pace.soon();
    }
    throw new ApiError(TEXTS.endedEarly);
  } catch (error) {
    pace.end();
    hasBegun.abort();
    if (signal.aborted) report({ state: "stopped" });
    else report({ state: "failed", error: worded(told(error), request, files) });
  }
}

/** Report that a model is being loaded, and when it is in memory, until the signal ends it. */
async function watchLoading(server: Server, model: string, end: AbortSignal, report: (isLoading: boolean) => void): Promise<void> {
  for (let isLoading = false; ; isLoading = true) {
    const loaded = await server.loaded(end).catch(() => null);
    if (end.aborted || !loaded) return; // the answer itself says what is wrong
    if (loaded.some(({ name, loading }) => name === model && !loading)) {
      if (isLoading) report(false);
      return;
    }
    if (!isLoading) report(true);
    await pause(LOADING_MS, end);
  }
}

/** Reports no more often than it can be seen: fast models write thousands of tokens a second. */
class Pace {
  readonly #report: () => void;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(report: () => void) {
    this.#report = report;
  }

  soon(): void {
    this.#timer ??= setTimeout(() => this.end(), FRAME_MS);
  }

  /** Report now what has not been reported. */
  end(): void {
    if (this.#timer === undefined) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#report();
  }
}

/** When the model was in memory, when the first text came, and how long the reasoning took. */
class Clock {
  readonly #start = performance.now();
  #loaded = 0;
  #first = 0;
  #answer = 0;

  loaded(): void {
    this.#loaded = performance.now();
  }

  /** Note that something of the answer, or of its reasoning, has come. */
  see(isAnswer: boolean, isReasoning: boolean): void {
    if (!this.#first && (isAnswer || isReasoning)) this.#first = performance.now();
    if (!this.#answer && isAnswer) this.#answer = performance.now();
  }

  /** How long the model was loaded, if it was. */
  get loadMs(): number {
    return this.#loaded ? this.#loaded - this.#start : 0;
  }

  get firstTokenMs(): number {
    return this.#first ? this.#first - this.#start : 0;
  }

  get reasoningMs(): number {
    return (this.#answer || performance.now()) - (this.#first || this.#start);
  }
}

function stateOf(line: ChatLine): Turn["state"] {
  return line.done_reason === "length" ? "limit" : "done";
}

/** Return the counts of an answer that is streamed: it may be stopped. */
function usageUntilNow(timings: Timings, droppedTokens: number, { firstTokenMs, loadMs }: Clock): Usage {
  const { cache_n, prompt_n, predicted_n, predicted_per_second } = timings;
  return {
    promptTokens: cache_n + prompt_n,
    cachedTokens: cache_n,
    tokens: predicted_n,
    tokensPerSecond: predicted_per_second,
    firstTokenMs: Math.max(firstTokenMs - loadMs, 0),
    ...(loadMs ? { loadMs } : {}),
    droppedTokens,
  };
}

function usageOf(line: ChatLine, firstTokenMs: number, wasLoading: boolean): Usage {
  const tokens = line.eval_count ?? 0;
  const seconds = (line.eval_duration ?? 0) / 1e9;
  const loadMs = (line.load_duration ?? 0) / 1e6;
  const hasLoaded = wasLoading || loadMs >= LOADING_MS;
  return {
    promptTokens: line.prompt_eval_count ?? 0,
    cachedTokens: line.prompt_eval_cached_count ?? 0,
    tokens,
    tokensPerSecond: seconds > 0 ? tokens / seconds : 0,
    firstTokenMs: hasLoaded ? Math.max(firstTokenMs - loadMs, 0) : firstTokenMs,
    ...(hasLoaded ? { loadMs } : {}),
    droppedTokens: line.truncated ?? 0,
  };
}

function told(error: unknown): string {
  const wait = error instanceof ApiError ? error.retryAfter : null;
  return wait === null ? messageOf(error) : TEXTS.retryAfter(messageOf(error), wait);
}
