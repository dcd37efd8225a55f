/** Requests to the server that the page comes from, with the key that the user has given. */

import { TEXTS } from "../texts.ts";
import { isObject, jsonLines } from "./lines.ts";
import { sentence } from "./sentence.ts";

/** The server refused a request, failed, or cannot be reached; `status` is 0 without a response. */
export class ApiError extends Error {
  readonly status: number;
  /** After how many seconds the server suggests to try again. */
  readonly retryAfter: number | null;

  constructor(message: string, status = 0, retryAfter: number | null = null) {
    super(sentence(message));
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Whether an error says that the server cannot be reached. */
export function isUnreachable(error: unknown): boolean {
  return error instanceof ApiError && error.status === 0;
}

export interface Keys {
  /** The key to send; empty: none. */
  read(): string;
  /** How often the user was asked for a key, and has given one, or none. */
  readonly replies: number;
  /** Called when the server asks for another key. */
  refused(): void;
}

interface Asked {
  key: string;
  replies: number;
}

/** The server's HTTP interface. */
export class Http {
  readonly #keys: Keys;

  constructor(keys: Keys) {
    this.#keys = keys;
  }

  /** Return the object of a response; an empty one if it has no body. */
  async ask(
    method: string,
    path: string,
    body?: unknown,
    signal: AbortSignal | null = null,
  ): Promise<Record<string, unknown>> {
    const response = await this.#send(method, path, body, signal);
    const text = await response.text().catch(lost);
    const value: unknown = text ? JSON.parse(text) : {};
    if (!isObject(value)) throw new ApiError(TEXTS.responseNotObject, response.status);
    return value;
  }

  /**
   * Yield the lines of a response; `signal` ends it.
   *
   * @throws ApiError for refusals, lines with an error, and a lost connection.
   */
  async *stream(
    path: string,
    body: unknown,
    signal: AbortSignal,
  ): AsyncGenerator<Record<string, unknown>, void, undefined> {
    const response = await this.#send("POST", path, body, signal);
    if (!response.body) return;
    try {
      for await (const line of jsonLines(response.body)) {
        if (typeof line.error === "string") throw new ApiError(line.error, response.status);
        yield line;
      }
    } catch (error) {
      lost(error);
    }
  }

  /**
   * Yield the objects of server-sent events; `signal` ends it.
   *
   * @throws ApiError for refusals and a lost connection.
   */
  async *events(path: string, signal: AbortSignal): AsyncGenerator<Record<string, unknown>, void, undefined> {
    const response = await this.#send("GET", path, undefined, signal, "text/event-stream");
    if (!response.body) return;
    try {
      for await (const event of jsonLines(response.body, "data:")) yield event;
    } catch (error) {
      lost(error);
    }
  }

  /** Whether there is something at a path. */
  async exists(path: string, signal: AbortSignal): Promise<boolean> {
    const found = await this.#send("HEAD", path, undefined, signal).catch((error: unknown) => {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    });
    return found !== null;
  }

  /** Send a file; `fetch` would not tell how much of it was sent, which `report` gets in bytes. */
  async upload(path: string, file: Blob, signal: AbortSignal, report: (bytes: number) => void): Promise<void> {
    signal.throwIfAborted();
    const request = new XMLHttpRequest();
    request.open("POST", path);
    const asked = this.#asked();
    for (const [name, value] of Object.entries(authorization(asked.key))) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => report(event.loaded);
    const abort = () => request.abort();
    signal.addEventListener("abort", abort);
    await new Promise<void>((resolve, reject) => {
      request.onloadend = () => resolve();
      request.onabort = () => reject(signal.reason as Error);
      request.send(file);
    }).finally(() => signal.removeEventListener("abort", abort));
    if (request.status === 0) throw new ApiError(TEXTS.unreachable);
    if (request.status >= 300) throw this.#refused(refusal(request.status, request.responseText, request.statusText), asked);
  }

  async #send(
    method: string,
    path: string,
    body?: unknown,
    signal: AbortSignal | null = null,
    accept = "",
  ): Promise<Response> {
    const asked = this.#asked();
    const headers = authorization(asked.key);
    if (accept) headers.accept = accept;
    if (body !== undefined) headers["content-type"] = "application/json";
    const content = body === undefined ? null : JSON.stringify(body);
    const response = await fetch(path, { method, headers, body: content, signal }).catch(lost);
    if (response.ok) return response;
    const text = await response.text().catch(() => "");
    const wait = Number(response.headers.get("retry-after") ?? Number.NaN);
    throw this.#refused(refusal(response.status, text, response.statusText, wait), asked);
  }

  /** The key that a request is sent with, and what it is known by. */
  #asked(): Asked {
    return { key: this.#keys.read(), replies: this.#keys.replies };
  }

  /** Ask for another key, unless the user has given one, or none, since the request was sent. */
  #refused(error: ApiError, { key, replies }: Asked): ApiError {
    if (error.status === 401 && key === this.#keys.read() && replies === this.#keys.replies) this.#keys.refused();
    return error;
  }
}

function authorization(key: string): Record<string, string> {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Raise what a failed `fetch` means: a `TypeError` is a lost connection. */
function lost(error: unknown): never {
  if (error instanceof TypeError) {
    throw new ApiError(TEXTS.unreachable);
  }
  throw error;
}

/** Return the error of a response: its message is the server's, or its text. */
function refusal(status: number, text: string, statusText: string, wait = Number.NaN): ApiError {
  let message = text.slice(0, 500) || statusText;
  try {
    const value: unknown = JSON.parse(text);
    if (isObject(value) && typeof value.error === "string") message = value.error;
  } catch {
    // The text is the message.
  }
  return new ApiError(message, status, Number.isFinite(wait) ? wait : null);
}

/** Return the message of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
