/** Reads a response whose lines are JSON objects, as Ollama's API streams them, or server-sent events. */

import { TEXTS } from "../texts.ts";

export class StreamError extends Error {}

/**
 * Yield the object of each line as soon as the line is complete.
 *
 * Lines and characters may be split anywhere between chunks. Empty lines are skipped, and the last
 * line needs no end. Leaving the loop cancels the response.
 *
 * @throws StreamError for a line that is not a JSON object.
 */
export async function* jsonLines(
  body: ReadableStream<Uint8Array>,
  prefix = "",
): AsyncGenerator<Record<string, unknown>, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = done ? "" : (lines.pop() ?? "");
      for (const line of lines) {
        if (line.trim() && line.startsWith(prefix)) yield parsed(line.slice(prefix.length));
      }
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => undefined); // it may have failed already
  }
}

function parsed(line: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    throw new StreamError(TEXTS.lineNotJson(line.slice(0, 80)));
  }
  if (!isObject(value)) {
    throw new StreamError(TEXTS.lineNotObject(line.slice(0, 80)));
  }
  return value;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
