/** The models of the server: installed, in memory, and those that are pulled. */

import { computed, signal } from "@preact/signals";

import { messageOf } from "../api/http.ts";
import type { LoadedModel, Model, Parameter, Server, ShownModel } from "../api/server.ts";

export interface Pull {
  name: string;
  status: string;
  total: number;
  completed: number;
  bytesPerSecond: number;
  error: string;
  isDone: boolean;
  cancel: () => void;
}

export class Models {
  readonly installed = signal<Model[] | null>(null);
  readonly loaded = signal<LoadedModel[]>([]);
  readonly parameters = signal<Parameter[]>([]);
  readonly pulls = signal<Pull[]>([]);
  /** The names of models that are being loaded, unloaded or deleted. */
  readonly busy = signal<ReadonlySet<string>>(new Set());
  readonly error = signal("");
  readonly forChat = computed(() =>
    (this.installed.value ?? []).filter((model) => model.capabilities.includes("completion")),
  );
  readonly #server: Server;

  constructor(server: Server) {
    this.#server = server;
  }

  /** Read the lists again; an error is shown, and the old lists stay. */
  async refresh(): Promise<void> {
    try {
      const [installed, loaded] = await Promise.all([this.#server.models(), this.#server.loaded()]);
      this.installed.value = installed;
      this.loaded.value = loaded;
      if (!this.parameters.value.length) this.parameters.value = await this.#server.parameters();
      this.error.value = "";
    } catch (error) {
      this.error.value = messageOf(error);
    }
  }

  find(name: string): Model | undefined {
    return this.installed.value?.find((model) => model.name === name);
  }

  can(name: string, capability: string): boolean {
    return this.find(name)?.capabilities.includes(capability) ?? false;
  }

  async show(name: string): Promise<ShownModel> {
    return await this.#server.show(name);
  }

  load = (name: string) => this.#while(name, () => this.#server.load(name));
  unload = (name: string) => this.#while(name, () => this.#server.unload(name));
  delete = (name: string) => this.#while(name, () => this.#server.delete(name));

  async pull(name: string): Promise<void> {
    const abort = new AbortController();
    const pull: Pull = {
      name, status: "", total: 0, completed: 0, bytesPerSecond: 0, error: "", isDone: false,
      cancel: () => {
        abort.abort();
        this.forget(name);
      },
    };
    this.pulls.value = [...this.pulls.value.filter((other) => other.name !== name), pull];
    const files = new Map<string, { total: number; completed: number }>();
    const rate = new Rate();
    try {
      for await (const line of this.#server.pull(name, abort.signal)) {
        if (line.digest && line.total) {
          files.set(line.digest, { total: line.total, completed: line.completed ?? 0 });
        }
        const total = sum(files, "total");
        const completed = sum(files, "completed");
        const bytesPerSecond = rate.at(completed);
        this.#changePull(name, { status: line.status, total, completed, bytesPerSecond });
      }
      this.#changePull(name, { isDone: true });
      await this.refresh();
    } catch (error) {
      if (!abort.signal.aborted) this.#changePull(name, { error: messageOf(error) });
    }
  }

  /** Take a pull that has ended off the list. */
  forget(name: string): void {
    this.pulls.value = this.pulls.value.filter((pull) => pull.name !== name);
  }

  #changePull(name: string, change: Partial<Pull>): void {
    this.pulls.value = this.pulls.value.map((pull) =>
      pull.name === name ? { ...pull, ...change } : pull,
    );
  }

  async #while(name: string, act: () => Promise<void>): Promise<void> {
    this.busy.value = new Set([...this.busy.value, name]);
    let message = "";
    try {
      await act();
    } catch (error) {
      message = messageOf(error);
    }
    this.busy.value = new Set([...this.busy.value].filter((other) => other !== name));
    await this.refresh();
    if (message) this.error.value = message;
  }
}

/** Bytes a second over the last few seconds. */
class Rate {
  #seen: { ms: number; bytes: number }[] = [];

  at(bytes: number): number {
    const ms = performance.now();
    this.#seen = [...this.#seen.filter((one) => ms - one.ms < 5000), { ms, bytes }];
    const first = this.#seen[0];
    return first && ms > first.ms ? ((bytes - first.bytes) / (ms - first.ms)) * 1000 : 0;
  }
}

function sum(
  files: Map<string, { total: number; completed: number }>,
  field: "total" | "completed",
): number {
  return [...files.values()].reduce((all, file) => all + file[field], 0);
}
