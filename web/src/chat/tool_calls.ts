/** Calls of tools that have a URL: which they are, and their results. */

import type { Server } from "../api/server.ts";
import { toolUrls } from "./formats.ts";
import { type Call, type Conversation, type Turn, turnsTo } from "./tree.ts";

/** How often in a row calls are sent without a click. */
export const MAX_ROUNDS = 10;

/** Return the URL at which each call of an answer is answered; empty: it has none. */
export function urlsOf(conversation: Conversation, turn: Turn): string[] {
  let urls: Map<string, string>;
  try {
    urls = toolUrls(conversation.tools);
  } catch {
    return (turn.calls ?? []).map(() => ""); // the tools are being edited
  }
  return (turn.calls ?? []).map((call) => urls.get(call.name) ?? "");
}

/** Whether calls may be sent without a click: all have a URL that is allowed, and no end is in sight. */
export function areSentAlone(conversation: Conversation, turn: Turn, isAllowed: (url: string) => boolean): boolean {
  const urls = urlsOf(conversation, turn);
  return urls.length > 0 && urls.every((url) => url && isAllowed(url)) && roundsOf(conversation, turn) <= MAX_ROUNDS;
}

/**
 * Return the results of calls: those that are given, and of the others what their URLs answer.
 *
 * @throws ApiError if the server refuses a URL, or there is no result.
 */
export async function resultsOf(
  server: Server,
  calls: Call[],
  urls: string[],
  given: string[],
  signal: AbortSignal,
): Promise<string[]> {
  return await Promise.all(calls.map(async (call, at) => {
    const url = urls[at];
    return given[at] || !url ? (given[at] ?? "") : await server.callTool(url, call.name, call.arguments, signal);
  }));
}

/** Return how many answers with calls there are since the last message of the user. */
function roundsOf(conversation: Conversation, turn: Turn): number {
  const turns = turnsTo(conversation, turn.id);
  return turns.slice(turns.findLastIndex((one) => one.role === "user")).filter((one) => one.calls).length;
}
