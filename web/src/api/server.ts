/** The routes that the page uses, with the types of what they return. */

import { Http } from "./http.ts";
import { isObject } from "./lines.ts";

export interface Details {
  family: string;
  parameter_size: string;
  quantization_level: string;
  context_length: number;
}

export interface Model {
  name: string;
  size: number;
  modified_at: string;
  digest: string;
  details: Details;
  capabilities: string[];
  /** Where it is: `store` for those that can be changed. */
  origin: string;
}

export interface LoadedModel {
  name: string;
  /** Another one than that of the installed model of its name: that is new since, and not in memory. */
  digest: string;
  size: number;
  size_vram: number;
  expires_at: string;
  context_length: number;
  engine: string;
  /** It is not ready yet, and its size is that of its file. */
  loading?: boolean;
  devices?: DeviceShare[];
  placement?: string;
}

/** What a device has of a model; the output layer is the last, after the model's own. */
export interface DeviceShare {
  name: string;
  layers: number[];
  experts: number[];
  has_embedding: boolean;
  weights: number;
  cache: number;
  graphs: number;
}

export interface ShownModel {
  license: string;
  modelfile: string;
  parameters: string;
  template: string;
  system: string;
  engine: string;
  capabilities: string[];
  details: Details;
  model_info: Record<string, unknown>;
  tensors?: Tensor[];
}

/** What a model would take of a device, and what is free there, in bytes. */
export interface DeviceEstimate {
  name: string;
  weights: number;
  cache: number;
  graphs: number;
  available: number;
}

export interface MemoryEstimate {
  context: number;
  slots: number;
  devices: DeviceEstimate[];
  fits: boolean;
  /** Why it does not fit; empty if it does. */
  message: string;
}

/** A tensor of a model's file; `size` is in bytes. */
export interface Tensor {
  name: string;
  type: string;
  shape: number[];
  size: number;
}

export type Value = number | string | boolean | string[];

export interface Parameter {
  name: string;
  type: "int" | "float" | "bool" | "str" | "list";
  default: Value | null;
  low: number | null;
  high: number | null;
  range: string;
  use: "sampling" | "generation" | "loading";
  doc: string;
}

/** A token: the text of an incomplete character is a replacement character, of a control token empty. */
export interface Piece {
  id: number;
  text: string;
  bytes: number[];
  /** How the vocabulary spells a control token. */
  control?: string;
}

/** A step of a pull or a creation. */
export interface Progress {
  status: string;
  digest?: string;
  total?: number;
  completed?: number;
}

export interface CreateRequest {
  model: string;
  from?: string;
  /** The digests of files by their names. */
  files?: Record<string, string>;
  quantize?: string;
  system?: string;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  images?: string[];
  thinking?: string;
  tool_calls?: ToolCall[];
  tool_name?: string;
}

export interface ToolCall {
  function: { name: string; arguments: Record<string, unknown> };
}

/** A token with its log-probability, and the likeliest tokens in its place. */
export interface LogprobLine {
  token: string;
  logprob: number;
  bytes?: number[];
  top_logprobs?: LogprobLine[];
  /** Of the model's whole distribution, in nats; some engines do not say. */
  entropy?: number;
}

export interface ChatRequest {
  model: string;
  messages: Message[];
  options: Record<string, Value>;
  think?: boolean;
  logprobs?: boolean;
  top_logprobs?: number;
  entropy?: boolean;
  format?: unknown;
  tools?: Record<string, unknown>[];
}

/** A line of an answer; counts and durations (in ns) are in the last one. */
export interface ChatLine {
  message: { content?: string; thinking?: string; tool_calls?: ToolCall[] };
  done: boolean;
  logprobs?: LogprobLine[];
  done_reason?: string;
  load_duration?: number;
  prompt_eval_count?: number;
  prompt_eval_cached_count?: number;
  prompt_eval_duration?: number;
  eval_count?: number;
  eval_duration?: number;
  /** How many tokens of the conversation did not fit the context; in all lines, those of the prompt before the last one. */
  truncated?: number;
  /** What the answer ended at, if its reason is `length`. */
  limit?: string;
  /** The counts until now, in all lines before the last one. */
  timings?: Timings;
}

/** Under llama-server's names; the prompt's are those that were computed, without those from the cache. */
export interface Timings {
  cache_n: number;
  prompt_n: number;
  predicted_n: number;
  predicted_per_second: number;
}

/** Whether a new model may have a name, and whether one has it already, and where that one is. */
export interface NameCheck {
  valid: boolean;
  error?: string;
  exists?: boolean;
  origin?: string;
}

export class Server {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** What the engine does, until the signal ends it. */
  live(signal: AbortSignal): AsyncIterable<Record<string, unknown>> {
    return this.#http.events("/api/live", signal);
  }

  /** What the layers of a model make of the token that is being written, until the signal ends it. */
  liveLayers(model: string, signal: AbortSignal): AsyncIterable<Record<string, unknown>> {
    return this.#http.events(`/api/live/layers?model=${encodeURIComponent(model)}`, signal);
  }

  async version(): Promise<string> {
    const { tampu } = await this.#http.ask("GET", "/api/version");
    return typeof tampu === "string" ? tampu : "";
  }

  async models(): Promise<Model[]> {
    return list<Model>((await this.#http.ask("GET", "/api/tags")).models);
  }

  async loaded(signal: AbortSignal | null = null): Promise<LoadedModel[]> {
    return list<LoadedModel>((await this.#http.ask("GET", "/api/ps", undefined, signal)).models);
  }

  async parameters(): Promise<Parameter[]> {
    return list<Parameter>((await this.#http.ask("GET", "/api/parameters")).parameters);
  }

  async show(model: string): Promise<ShownModel> {
    return (await this.#http.ask("POST", "/api/show", { model, tensors: true })) as unknown as ShownModel;
  }

  /** Return what a model would take of memory; null: its engine does not tell. */
  async estimate(model: string): Promise<MemoryEstimate | null> {
    const { memory } = await this.#http.ask("POST", "/api/show", { model, memory: true });
    return isObject(memory) ? (memory as unknown as MemoryEstimate) : null;
  }

  async load(model: string): Promise<void> {
    await this.#http.ask("POST", "/api/generate", { model, stream: false });
  }

  async unload(model: string): Promise<void> {
    await this.#http.ask("POST", "/api/generate", { model, stream: false, keep_alive: 0 });
  }

  async delete(model: string): Promise<void> {
    await this.#http.ask("DELETE", "/api/delete", { model });
  }

  /** Return the tokens of a text; `isBegin` adds those of the model, `isSpecial` reads control tokens. */
  async tokenize(
    model: string,
    text: string,
    { isBegin, isSpecial }: { isBegin: boolean; isSpecial: boolean },
    signal: AbortSignal,
  ): Promise<Piece[]> {
    const body = { model, text, add_special: isBegin, parse_special: isSpecial, pieces: true };
    return list<Piece>((await this.#http.ask("POST", "/api/tokenize", body, signal)).pieces);
  }

  /** Return why a model cannot follow an output format (empty: it can), and what of the format is ignored. */
  async checkFormat(
    model: string,
    format: unknown,
    signal: AbortSignal,
  ): Promise<{ problem: string; warnings: string[] }> {
    const { error, warnings } = await this.#http.ask("POST", "/api/format/check", { model, format }, signal);
    const problem = typeof error === "string" ? error.replace(/^format: /, "") : "";
    return { problem, warnings: Array.isArray(warnings) ? warnings.map(String) : [] };
  }

  /** Pull a model; a name that begins with `http://` is of a registry without TLS. */
  pull(name: string, signal: AbortSignal): AsyncIterable<Progress> {
    const body = { model: name.replace(/^https?:\/\//, ""), insecure: name.startsWith("http://") };
    const lines: AsyncIterable<unknown> = this.#http.stream("/api/pull", body, signal);
    return lines as AsyncIterable<Progress>;
  }

  /** Create a model from another one, or from files that were uploaded. */
  create(request: CreateRequest, signal: AbortSignal): AsyncIterable<Progress> {
    const lines: AsyncIterable<unknown> = this.#http.stream("/api/create", request, signal);
    return lines as AsyncIterable<Progress>;
  }

  async checkName(name: string, signal: AbortSignal): Promise<NameCheck> {
    return (await this.#http.ask("POST", "/api/create/check", { model: name }, signal)) as unknown as NameCheck;
  }

  /** Whether the server has the file of a digest. */
  async hasBlob(digest: string, signal: AbortSignal): Promise<boolean> {
    return await this.#http.exists(`/api/blobs/sha256:${digest}`, signal);
  }

  /** Upload a file; `report` is called with the number of bytes that were sent. */
  async upload(file: Blob, digest: string, signal: AbortSignal, report: (bytes: number) => void): Promise<void> {
    await this.#http.upload(`/api/blobs/sha256:${digest}`, file, signal, report);
  }

  /** Return the result of a tool's call, which the server sends to the tool's URL. */
  async callTool(url: string, name: string, given: Record<string, unknown>, signal: AbortSignal): Promise<string> {
    const { result } = await this.#http.ask("POST", "/api/tools/call", { url, name, arguments: given }, signal);
    return typeof result === "string" ? result : "";
  }

  chat(request: ChatRequest, signal: AbortSignal): AsyncIterable<ChatLine> {
    const lines: AsyncIterable<unknown> = this.#http.stream("/api/chat", { ...request, stream: true, timings_per_token: true }, signal);
    return lines as AsyncIterable<ChatLine>;
  }
}

function list<T>(value: unknown): T[] {
  return Array.isArray(value) ? (value.filter(isObject) as T[]) : [];
}
