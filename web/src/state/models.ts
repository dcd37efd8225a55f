/** The models of the server: installed, in memory, and those that are pulled or created. */

import { computed, signal } from "@preact/signals";

import { ApiError, isUnreachable, messageOf } from "../api/http.ts";
import type { LoadedModel, MemoryEstimate, Model, Parameter, Server, ShownModel } from "../api/server.ts";
import { type NewModel, creation } from "../models/create.ts";
import type { Settings } from "./settings.ts";
import { type Transfer, Transfers } from "./transfers.ts";

const AGAIN_MS = 3000; // after the lists could not be read

/** What could not be done to a model, and why. */
export interface Failure {
  action: "load" | "unload" | "delete";
  message: string;
}

export class Models {
  readonly installed = signal<Model[] | null>(null);
  readonly loaded = signal<LoadedModel[]>([]);
  readonly parameters = signal<Parameter[]>([]);
  readonly transfers = new Transfers(() => this.refresh());
  /** The names of models that are being loaded, unloaded or deleted. */
  readonly busy = signal<ReadonlySet<string>>(new Set());
  /** Why the lists could not be read; empty: they are those of the server. */
  readonly error = signal("");
  /** What could not be done to models, by their names; until it can, or it is dismissed. */
  readonly failures = signal<ReadonlyMap<string, Failure>>(new Map());
  readonly forChat = computed(() =>
    (this.installed.value ?? []).filter((model) => model.capabilities.includes("completion")),
  );
  /** The names of those one can chat with, in the order in which this tab came to know them: a new model takes no place. */
  readonly usual = signal<readonly string[]>([]);
  readonly #server: Server;
  readonly #settings: Settings;
  #again: ReturnType<typeof setTimeout> | undefined;
  /** How often the lists were asked for: an answer that is not the newest question's is not shown. */
  #asked = 0;

  constructor(server: Server, settings: Settings) {
    this.#server = server;
    this.#settings = settings;
    for (const pull of settings.pulls) this.transfers.add("pull", pull, () => void this.pull(pull.name));
  }

  /** Read the lists again. After an error what is installed stays, and the server is asked until it answers, unless it needs a key. */
  async refresh(): Promise<void> {
    clearTimeout(this.#again);
    const asked = ++this.#asked;
    try {
      const [installed, loaded] = await Promise.all([this.#server.models(), this.#server.loaded()]);
      if (asked !== this.#asked) return;
      this.installed.value = installed;
      this.loaded.value = loaded;
      const names = this.forChat.value.map((model) => model.name);
      const known = this.usual.value.filter((name) => names.includes(name));
      this.usual.value = [...known, ...names.filter((name) => !known.includes(name))];
      if (!this.parameters.value.length) this.parameters.value = await this.#server.parameters();
      this.error.value = "";
    } catch (error) {
      if (asked !== this.#asked) return;
      const needsKey = error instanceof ApiError && error.status === 401;
      if (isUnreachable(error)) this.loaded.value = [];
      if (!needsKey) this.#again = setTimeout(() => void this.refresh(), AGAIN_MS);
      this.error.value = needsKey ? this.#settings.keyProblem : messageOf(error);
    }
  }

  find(name: string): Model | undefined {
    return this.installed.value?.find((model) => model.name === name);
  }

  /** Return what is in memory of a model; undefined: nothing, or an earlier model of its name. */
  inMemory({ name, digest }: Model): LoadedModel | undefined {
    return this.loaded.value.find((one) => one.name === name && one.digest === digest);
  }

  /** Whether a model that was chosen to chat with is not there, as far as the server's list is known. */
  isGone(name: string): boolean {
    return name !== "" && this.installed.value !== null && !this.usual.value.includes(name);
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

  load = (name: string) => this.#while(name, "load", () => this.#server.load(name));
  unload = (name: string) => this.#while(name, "unload", () => this.#server.unload(name));
  delete = (name: string) => this.#while(name, "delete", () => this.#server.delete(name));

  /** Pull a model; what is not whole stays on the server, and the next pull goes on there. */
  async pull(name: string): Promise<void> {
    this.#settings.keepPull({ name, completed: 0, total: 0 });
    const again = () => void this.pull(name);
    const isDone = await this.transfers.run("pull", name, (abort) => this.#server.pull(name, abort), again);
    if (isDone) this.#settings.forgetPull(name);
    else this.keepPulls();
  }

  /** Keep how far pulls came, for when the page is opened again. */
  keepPulls(): void {
    for (const one of this.transfers.all.value) {
      if (one.action === "pull" && one.state !== "done") this.#settings.keepPull(one);
    }
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

  /** Take what could not be done to a model off the list. */
  dismiss(name: string): void {
    this.failures.value = new Map([...this.failures.value].filter(([other]) => other !== name));
  }

  /** Take a transfer that has ended off the list. */
  forget({ action, name }: Transfer): void {
    if (action === "pull") this.#settings.forgetPull(name);
    this.transfers.forget(name);
  }

  async #while(name: string, action: Failure["action"], act: () => Promise<void>): Promise<void> {
    this.dismiss(name);
    this.busy.value = new Set([...this.busy.value, name]);
    try {
      await act();
    } catch (error) {
      // The lists, read below, tell of a lost server, and a dialog asks for a key.
      const isToldElsewhere = isUnreachable(error) || (error instanceof ApiError && error.status === 401);
      if (!isToldElsewhere) this.failures.value = new Map([...this.failures.value, [name, { action, message: messageOf(error) }]]);
    }
    this.busy.value = new Set([...this.busy.value].filter((other) => other !== name));
    await this.refresh();
  }
}
