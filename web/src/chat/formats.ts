/** The output format and the tools of a conversation, as the user writes them and as requests have them. */

import { messageOf } from "../api/http.ts";
import { isObject } from "../api/lines.ts";
import { TEXTS } from "../texts.ts";

export const FORMATS = ["none", "json", "schema", "gbnf", "lark", "regex"] as const;

export interface Format {
  kind: (typeof FORMATS)[number];
  /** The schema or the grammar. */
  text: string;
}

export const NO_FORMAT: Format = { kind: "none", text: "" };

/** What the user has written cannot be sent; the message says why. */
export class FormatError extends Error {}

/**
 * Return the `format` of a request; undefined: none.
 *
 * @throws FormatError for a schema that is not a JSON object, and for an empty grammar.
 */
export function requestFormat({ kind, text }: Format): unknown {
  if (kind === "none") return undefined;
  if (kind === "json") return "json";
  if (!text.trim()) throw new FormatError(TEXTS.emptyFormat);
  if (kind !== "schema") return { [kind]: text };
  const schema = parsed(text);
  if (!isObject(schema)) throw new FormatError(TEXTS.schemaNotObject);
  return schema;
}

/**
 * Return the `tools` of a request: functions in OpenAI's form, of a list or of one object, which may
 * also be the function alone; undefined: none. The model is not shown their URLs.
 *
 * @throws FormatError for what is not JSON, or not such a function.
 */
export function requestTools(text: string): Record<string, unknown>[] | undefined {
  const tools = toolsOf(text);
  return tools.length ? tools.map(({ tool }) => tool) : undefined;
}

/** Return the URLs at which calls are answered, by the names of the tools that have one. */
export function toolUrls(text: string): Map<string, string> {
  return new Map(toolsOf(text).flatMap(({ name, url }) => (url ? [[name, url]] : [])));
}

interface Tool {
  name: string;
  url: string;
  /** As a request has it. */
  tool: Record<string, unknown>;
}

function toolsOf(text: string): Tool[] {
  if (!text.trim()) return [];
  const value = parsed(text);
  return (Array.isArray(value) ? (value as unknown[]) : [value]).map(toolOf);
}

function toolOf(value: unknown, at: number): Tool {
  const given = isObject(value) && value.type !== "function" ? { type: "function", function: value } : value;
  if (!isObject(given) || !isObject(given.function)) throw new FormatError(TEXTS.notFunction(at));
  const { url: outer, ...tool } = given;
  const { url = outer ?? "", ...called } = given.function;
  const { name, parameters = {} } = called;
  if (typeof name !== "string" || !name) throw new FormatError(TEXTS.noFunctionName(at));
  if (!isObject(parameters)) throw new FormatError(TEXTS.parametersNotObject(name));
  if (typeof url !== "string" || (url && !isHttp(url))) throw new FormatError(TEXTS.notToolUrl(name));
  return { name, url, tool: { ...tool, function: called } };
}

function isHttp(url: string): boolean {
  return URL.canParse(url) && ["http:", "https:"].includes(new URL(url).protocol);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw new FormatError(messageOf(error));
  }
}

/** Return what is wrong with something that is read; empty: nothing. */
export function problemOf(read: () => unknown): string {
  try {
    read();
    return "";
  } catch (error) {
    return messageOf(error);
  }
}
