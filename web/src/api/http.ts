/** Requests to the server that the page comes from, with the key that the user has given. */

import { isObject, jsonLines } from "./lines.ts";

/** The server refused a request, failed, or cannot be reached; `status` is 0 without a response. */
export class ApiError extends Error {
  readonly status: number;
  /** After how many seconds the server suggests to try again. */
  readonly retryAfter: number | null;

  constructor(message: string, status = 0, retryAfter: number | null = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export interface Keys {
  /** The key to send; empty: none. */
  read(): string;
  /** Called when the server asks for another key. */
  refused(): void;
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
    if (!isObject(value)) throw new ApiError("the response is not an object", response.status);
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

  async #send(
    method: string,
    path: string,
    body?: unknown,
    signal: AbortSignal | null = null,
    accept = "",
  ): Promise<Response> {
    const headers: Record<string, string> = {};
    if (accept) headers.accept = accept;
    const key = this.#keys.read();
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const content = body === undefined ? null : JSON.stringify(body);
    const response = await fetch(path, { method, headers, body: content, signal }).catch(lost);
    if (response.ok) return response;
    const error = await refusal(response);
    if (error.status === 401) this.#keys.refused();
    throw error;
  }
}

/** Raise what a failed `fetch` means: a `TypeError` is a lost connection. */
function lost(error: unknown): never {
  if (error instanceof TypeError) {
    throw new ApiError("The server cannot be reached. Is it running?");
  }
  throw error;
}

async function refusal(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  const wait = Number(response.headers.get("retry-after") ?? Number.NaN);
  let message = text.slice(0, 500) || response.statusText;
  try {
    const value: unknown = JSON.parse(text);
    if (isObject(value) && typeof value.error === "string") message = value.error;
  } catch {
    // The text is the message.
  }
  return new ApiError(message, response.status, Number.isFinite(wait) ? wait : null);
}

/** Return the message of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
