/** The models of the server: installed, in memory, and those that are pulled or created. */

import { computed, signal } from "@preact/signals";

import { ApiError, messageOf } from "../api/http.ts";
import type { LoadedModel, MemoryEstimate, Model, Parameter, Server, ShownModel } from "../api/server.ts";
import { type NewModel, creation } from "../models/create.ts";
import type { Settings } from "./settings.ts";
import { type Transfer, Transfers } from "./transfers.ts";

export class Models {
  readonly installed = signal<Model[] | null>(null);
  readonly loaded = signal<LoadedModel[]>([]);
  readonly parameters = signal<Parameter[]>([]);
  readonly transfers = new Transfers(() => this.refresh());
  /** The names of models that are being loaded, unloaded or deleted. */
  readonly busy = signal<ReadonlySet<string>>(new Set());
  readonly error = signal("");
  /** Why models could not be loaded, by their names; until they can, or it is dismissed. */
  readonly failures = signal<ReadonlyMap<string, string>>(new Map());
  readonly forChat = computed(() =>
    (this.installed.value ?? []).filter((model) => model.capabilities.includes("completion")),
  );
  readonly #server: Server;
  readonly #settings: Settings;

  constructor(server: Server, settings: Settings) {
    this.#server = server;
    this.#settings = settings;
    for (const name of settings.pulls) this.transfers.add("pull", name, () => void this.pull(name));
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
      this.error.value = this.#settings.asksForKey.value ? "" : messageOf(error); // a dialog asks for the key
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

  /** Return what a model would take of memory; null: its engine does not tell. */
  async estimate(name: string): Promise<MemoryEstimate | null> {
    return await this.#server.estimate(name);
  }

  load = (name: string) =>
    this.#while(name, async () => {
      this.dismiss(name);
      try {
        await this.#server.load(name);
      } catch (error) {
        if (!(error instanceof ApiError && error.status)) throw error;
        this.failures.value = new Map([...this.failures.value, [name, messageOf(error)]]);
      }
    });
  unload = (name: string) => this.#while(name, () => this.#server.unload(name));
  delete = (name: string) => this.#while(name, () => this.#server.delete(name));

  /** Pull a model; what is not whole stays on the server, and the next pull goes on there. */
  async pull(name: string): Promise<void> {
    this.#settings.pulls = [...this.#settings.pulls.filter((other) => other !== name), name];
    const again = () => void this.pull(name);
    const isDone = await this.transfers.run("pull", name, (abort) => this.#server.pull(name, abort), again);
    if (isDone) this.#forgetPull(name);
  }

  /** Create a model from files of this machine. */
  async create(model: NewModel): Promise<void> {
    await this.transfers.run("create", model.name, (abort) => creation(this.#server, model, abort));
  }

  /** Create a model from another one, with its weights in another type. */
  async quantize(source: string, type: string, name: string): Promise<void> {
    const request = { model: name, from: source, quantize: type };
    await this.transfers.run("quantize", name, (abort) => this.#server.create(request, abort));
  }

  /** Take the reason why a model could not be loaded off the list. */
  dismiss(name: string): void {
    this.failures.value = new Map([...this.failures.value].filter(([other]) => other !== name));
  }

  /** Take a transfer that has ended off the list. */
  forget({ action, name }: Transfer): void {
    if (action === "pull") this.#forgetPull(name);
    this.transfers.forget(name);
  }

  #forgetPull(name: string): void {
    this.#settings.pulls = this.#settings.pulls.filter((other) => other !== name);
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
