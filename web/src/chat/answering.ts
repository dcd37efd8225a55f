/** One answer while it is streamed. */

import { ApiError, messageOf } from "../api/http.ts";
import type { ChatLine, ChatRequest, Server } from "../api/server.ts";
import { TEXTS } from "../texts.ts";
import { tokensOf } from "./token_text.ts";
import type { Call, Turn, Usage } from "./tree.ts";

const FRAME_MS = 40;

type Change = Partial<Turn>;
type Before = Pick<Turn, "content" | "tokens" | "tokensFrom">;

/**
 * Ask for an answer, and report its turn's changes until it has ended; nothing is thrown.
 *
 * @param before what the turn has already, if its answer is continued.
 */
export async function answer(
  server: Server,
  request: ChatRequest,
  before: Before,
  signal: AbortSignal,
  report: (change: Change) => void,
): Promise<void> {
  const clock = new Clock();
  const tokens = before.tokens ? [...before.tokens] : [];
  const calls: Call[] = [];
  let { content } = before;
  let reasoning = "";
  let hasTokens = false;
  const now = (): Change => ({
    content,
    ...(hasTokens ? { tokens: [...tokens], tokensFrom: before.tokensFrom ?? 0 } : {}),
    ...(calls.length ? { calls: [...calls] } : {}),
    ...(reasoning ? { reasoning, reasoningMs: clock.reasoningMs } : {}),
  });
  const pace = new Pace(() => report(now()));
  try {
    for await (const line of server.chat(request, signal)) {
      const { content: text = "", thinking = "", tool_calls = [] } = line.message;
      clock.see(text, thinking);
      content += text;
      reasoning += thinking;
      calls.push(...tool_calls.map((call) => ({ name: call.function.name, arguments: call.function.arguments })));
      if (line.logprobs && !thinking) {
        tokens.push(...tokensOf(line.logprobs));
        hasTokens = true;
      }
      if (line.done) {
        pace.end();
        report({ ...now(), state: stateOf(line), usage: usageOf(line, clock.firstTokenMs) });
        return;
      }
      pace.soon();
    }
    throw new ApiError(TEXTS.endedEarly);
  } catch (error) {
    pace.end();
    if (signal.aborted) report({ state: "stopped" });
    else report({ state: "failed", error: told(error) });
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

/** When the first text came, and how long the reasoning took. */
class Clock {
  readonly #start = performance.now();
  #first = 0;
  #answer = 0;

  see(text: string, thinking: string): void {
    if (!this.#first && (text || thinking)) this.#first = performance.now();
    if (!this.#answer && text) this.#answer = performance.now();
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

function usageOf(line: ChatLine, firstTokenMs: number): Usage {
  const tokens = line.eval_count ?? 0;
  const seconds = (line.eval_duration ?? 0) / 1e9;
  return {
    promptTokens: line.prompt_eval_count ?? 0,
    cachedTokens: line.prompt_eval_cached_count ?? 0,
    tokens,
    tokensPerSecond: seconds > 0 ? tokens / seconds : 0,
    firstTokenMs,
    droppedTokens: line.truncated ?? 0,
  };
}

function told(error: unknown): string {
  const wait = error instanceof ApiError ? error.retryAfter : null;
  return wait === null ? messageOf(error) : TEXTS.retryAfter(messageOf(error), wait);
}
