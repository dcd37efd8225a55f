/** Reads the live route while the view is open, and again when the connection was lost. */

import { signal } from "@preact/signals";

import { ApiError, messageOf } from "../api/http.ts";
import { pause } from "../api/pause.ts";
import type { Server } from "../api/server.ts";
import type { Settings } from "../state/settings.ts";
import { type Frame, type History, NOTHING, withFrame } from "./live.ts";

const AGAIN_MS = 2000;

export class Feed {
  readonly history = signal<History>(NOTHING);
  readonly error = signal("");
  /** What is shown: the newest, or what there was when it was paused. */
  readonly paused = signal<History | null>(null);
  readonly #server: Server;
  readonly #settings: Settings;

  constructor(server: Server, settings: Settings) {
    this.#server = server;
    this.#settings = settings;
  }

  /** Read until the signal ends it. */
  async read(end: AbortSignal): Promise<void> {
    while (!end.aborted) {
      const key = this.#settings.read();
      try {
        for await (const event of this.#server.live(end)) {
          this.history.value = withFrame(this.history.value, event as unknown as Frame);
          this.error.value = "";
        }
      } catch (error) {
        const isRefused = error instanceof ApiError && error.status === 401;
        if (!(error instanceof DOMException && error.name === "AbortError")) {
          this.error.value = isRefused ? this.#settings.keyProblem : messageOf(error);
        }
        if (isRefused) await this.#otherKey(key, end);
      }
      await pause(AGAIN_MS, end);
    }
  }

  /** Wait for another key: with the same one another try would only ask the user for it again. */
  async #otherKey(key: string, end: AbortSignal): Promise<void> {
    while (!end.aborted && this.#settings.read() === key) await pause(AGAIN_MS, end);
  }

  togglePause(): void {
    this.paused.value = this.paused.value ? null : this.history.value;
  }
}
