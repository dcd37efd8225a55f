/** One prompt to two models, or to one with two settings, at once. */

import { type Signal, computed, signal } from "@preact/signals";

import type { Message, Server, Value } from "../api/server.ts";
import { answer } from "../chat/answering.ts";
import { newId } from "../chat/ids.ts";
import { ROOT, type Turn } from "../chat/tree.ts";
import type { Models } from "./models.ts";

export interface Side {
  name: "A" | "B";
  /** Empty: the first model, or the second. */
  model: string;
  system: string;
  options: Record<string, Value>;
  /** Whether its parameters are shown. */
  isOpen: boolean;
  /** The last answer. */
  turn: Turn | null;
}

export class Compare {
  /** The last prompt that was sent. */
  readonly prompt = signal("");
  /** How many were sent. */
  readonly sent = signal(0);
  readonly sides: readonly Signal<Side>[] = (["A", "B"] as const).map((name) =>
    signal<Side>({ name, model: "", system: "", options: {}, isOpen: false, turn: null }),
  );
  readonly isRunning = computed(() => this.#running.value > 0);
  readonly #running = signal(0);
  readonly #server: Server;
  readonly #models: Models;
  #abort = new AbortController();

  constructor(server: Server, models: Models) {
    this.#server = server;
    this.#models = models;
  }

  /** Return the model of a side: the chosen one, which may be gone, else a different one for each where there are two. */
  modelOf({ name, model }: Side): string {
    const names = this.#models.usual.value;
    if (model) return model;
    return names[name === "A" ? 0 : 1] ?? names[0] ?? "";
  }

  /** Keep the models that are shown: one that is new later is no reason for others. */
  settle(): void {
    for (const side of this.sides) {
      const model = this.modelOf(side.value);
      if (model && model !== side.value.model) side.value = { ...side.value, model };
    }
  }

  /** Send a prompt to both sides; their answers are streamed at once, where parameters were shown. */
  async send(prompt: string): Promise<void> {
    if (this.isRunning.value) return;
    this.prompt.value = prompt;
    this.sent.value += 1;
    this.#abort = new AbortController();
    this.#running.value = this.sides.length;
    await Promise.all(this.sides.map((side) => this.#answer(side, prompt, this.#abort.signal)));
    await this.#models.refresh();
  }

  stop(): void {
    this.#abort.abort();
  }

  async #answer(side: Signal<Side>, prompt: string, abort: AbortSignal): Promise<void> {
    const { system, options } = side.value;
    const model = this.modelOf(side.value);
    const messages: Message[] = [{ role: "user", content: prompt }];
    if (system.trim()) messages.unshift({ role: "system", content: system.trim() });
    let turn: Turn = {
      id: newId(), parent: ROOT, role: "assistant", content: "", created: Date.now(),
      state: "streaming", model,
    };
    side.value = { ...side.value, turn, isOpen: false };
    await answer(this.#server, { model, messages, options }, { content: "" }, abort, (change) => {
      turn = { ...turn, ...change };
      side.value = { ...side.value, turn };
    });
    this.#running.value -= 1;
  }
}
