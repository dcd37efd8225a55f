/** What is wrong with the output format and the tools of the open conversation: the page looks, then the server. */

import { type ReadonlySignal, computed, effect, signal } from "@preact/signals";

import type { Server } from "../api/server.ts";
import { problemOf, requestFormat, requestTools } from "../chat/formats.ts";
import type { Conversation } from "../chat/tree.ts";

const WAIT_MS = 250; // for more typing

/** What the server said of a format, and on what it was asked. */
interface Verdict {
  asked: string;
  problem: string;
  warnings: string[];
}

const NOTHING: Verdict = { asked: "", problem: "", warnings: [] };

export class FormatCheck {
  /** Why the tools cannot be sent; empty: they can. */
  readonly toolsProblem = computed(() => problemOf(() => requestTools(this.#tools.value)));
  /** Why the format cannot be sent, or the server refuses it; empty: nothing is known against it. */
  readonly formatProblem = computed(() => {
    const { asked, problem } = this.#verdict.value;
    return this.#problem.value || (asked === this.#asked.value ? problem : "");
  });
  /** What of the format the server ignores. */
  readonly formatWarnings = computed(() => {
    const { asked, warnings } = this.#verdict.value;
    return asked === this.#asked.value ? warnings : [];
  });
  /** Whether the server has not answered yet. */
  readonly isChecking = computed(() => this.#asked.value !== "" && this.#verdict.value.asked !== this.#asked.value);
  readonly problem = computed(() => this.formatProblem.value || this.toolsProblem.value);
  readonly #format = computed(() => this.#open.value.format);
  readonly #tools = computed(() => this.#open.value.tools);
  readonly #problem = computed(() => problemOf(() => requestFormat(this.#format.value)));
  /** What the server is asked: it changes with the model and the format only. Empty: nothing. */
  readonly #asked = computed(() => {
    const { kind, text } = this.#format.value;
    const isAsked = kind !== "none" && kind !== "json" && !this.#problem.value && this.#model.value !== "";
    return isAsked ? JSON.stringify([this.#model.value, kind, text]) : "";
  });
  readonly #verdict = signal(NOTHING);
  readonly #server: Server;
  readonly #open: ReadonlySignal<Conversation>;
  readonly #model: ReadonlySignal<string>;

  constructor(server: Server, open: ReadonlySignal<Conversation>, model: ReadonlySignal<string>) {
    this.#server = server;
    this.#open = open;
    this.#model = model;
    effect(() => {
      const asked = this.#asked.value;
      if (!asked || this.#verdict.peek().asked === asked) return;
      const abort = new AbortController();
      const timer = setTimeout(() => void this.#ask(asked, abort.signal), WAIT_MS);
      return () => {
        clearTimeout(timer);
        abort.abort();
      };
    });
  }

  async #ask(asked: string, signal: AbortSignal): Promise<void> {
    let verdict = { ...NOTHING, asked };
    try {
      const found = await this.#server.checkFormat(this.#model.peek(), requestFormat(this.#format.peek()), signal);
      verdict = { asked, ...found };
    } catch {
      // A message that is sent will tell it.
    }
    if (!signal.aborted) this.#verdict.value = verdict;
  }
}
