/** The API's messages name the fields of a request; the page says what they are called here. */

import type { ChatRequest } from "../api/server.ts";
import { TEXTS } from "../texts.ts";

const ELEMENT = /\b(messages|tools)\[(\d+)\](?:\.images\[(\d+)\])?((?:\.\w+|\[\d+\])*)/g;
const FIELD = /^(format|options|think|tools)(?=: )/;
const FIELDS: Readonly<Record<string, string>> = { format: TEXTS.format, options: TEXTS.parameters, think: TEXTS.reasoningField, tools: TEXTS.tools };

/**
 * Return a message of the API about a request in the words of the page.
 *
 * @param files the names of each message's files; empty where they are not known.
 */
export function worded(message: string, request: Pick<ChatRequest, "messages" | "tools">, files: readonly (readonly string[])[]): string {
  const elements = message.replaceAll(ELEMENT, (_, field: string, at: string, image: string | undefined, rest: string, place: number) => {
    const name = field === "tools" ? toolOf(request, Number(at)) : image === undefined ? messageOf(request, Number(at)) : fileOf(files, Number(at), Number(image));
    const isTitle = place === 0 && image === undefined;
    const more = rest.replace(/^\.(?:function(?:\.|$))?/, "");
    return (isTitle ? name.charAt(0).toUpperCase() + name.slice(1) : name) + (more && `, ${more}`);
  });
  return elements.replace(FIELD, (field) => FIELDS[field] ?? field);
}

function fileOf(files: readonly (readonly string[])[], at: number, image: number): string {
  const name = files[at]?.[image] ?? "";
  return name === "" ? TEXTS.fileOf(image + 1) : name;
}

/** Messages are counted as the page shows them: without the system prompt. */
function messageOf({ messages }: Pick<ChatRequest, "messages">, at: number): string {
  const hasSystem = messages[0]?.role === "system";
  return hasSystem && at === 0 ? TEXTS.systemField : TEXTS.messageField(at + (hasSystem ? 0 : 1));
}

function toolOf({ tools = [] }: Pick<ChatRequest, "tools">, at: number): string {
  const { function: called } = (tools[at] ?? {}) as { function?: { name?: unknown } };
  return TEXTS.toolField(typeof called?.name === "string" ? called.name : String(at + 1));
}
