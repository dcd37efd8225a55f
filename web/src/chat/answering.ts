/** One answer while it is streamed. */

import { ApiError, messageOf } from "../api/http.ts";
import type { ChatLine, ChatRequest, Server } from "../api/server.ts";
import type { Turn, Usage } from "./tree.ts";

type Change = Partial<Turn>;

/**
 * Ask for an answer, and report its turn's changes until it has ended; nothing is thrown.
 *
 * @param before what the turn has already: an answer that is continued.
 */
export async function answer(
  server: Server,
  request: ChatRequest,
  before: string,
  signal: AbortSignal,
  report: (change: Change) => void,
): Promise<void> {
  const clock = new Clock();
  let content = before;
  let reasoning = "";
  try {
    for await (const line of server.chat(request, signal)) {
      const { content: text = "", thinking = "" } = line.message;
      clock.see(text, thinking);
      content += text;
      reasoning += thinking;
      const change: Change = { content };
      if (reasoning) Object.assign(change, { reasoning, reasoningMs: clock.reasoningMs });
      if (line.done) {
        report({ ...change, state: stateOf(line), usage: usageOf(line, clock.firstTokenMs) });
        return;
      }
      report(change);
    }
    throw new ApiError("The stream ended early. Has the server stopped?");
  } catch (error) {
    if (signal.aborted) report({ state: "stopped" });
    else report({ state: "failed", error: told(error) });
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
  return wait === null ? messageOf(error) : `${messageOf(error)}. Try again in ${wait} s.`;
}
