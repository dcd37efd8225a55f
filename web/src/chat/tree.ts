/**
 * A conversation as a tree of turns: a message that is edited, and an answer that is asked for
 * again, are new branches beside the old ones. All functions return new objects.
 */

import type { Message, Value } from "../api/server.ts";
import { nameOf } from "./files.ts";
import { type Format, NO_FORMAT } from "./formats.ts";
import type { Token } from "./token_text.ts";

export interface Usage {
  promptTokens: number;
  cachedTokens: number;
  tokens: number;
  tokensPerSecond: number;
  /** From the request, or from when the model was loaded, to the first text, in ms. */
  firstTokenMs: number;
  /** How long the request waited for its model to be loaded, if it did, in ms. */
  loadMs?: number;
  /** How many tokens of the conversation did not fit the context. */
  droppedTokens: number;
  /** Whether the tokens go on from a text that was there. */
  isMore?: boolean;
}

export interface Turn {
  id: string;
  /** The turn before it; empty: it begins the conversation. */
  parent: string;
  role: "user" | "assistant" | "tool";
  content: string;
  /** In milliseconds since 1970. */
  created: number;
  state: "done" | "streaming" | "stopped" | "failed" | "interrupted" | "limit";
  /** And videos: data URLs. */
  images?: string[];
  reasoning?: string;
  reasoningMs?: number;
  model?: string;
  usage?: Usage;
  /** Whether the model is still being loaded. */
  isLoading?: boolean;
  /** What the answer ended at, if its state is `limit`. */
  limit?: string;
  error?: string;
  /** The output format of the answer, if it has one. */
  format?: Format["kind"];
  /** If they were asked for. */
  tokens?: Token[];
  /** How many characters of the content come before the first token. */
  tokensFrom?: number;
  /** The tools that the model calls. */
  calls?: Call[];
  /** The tool of which this is the result. */
  tool?: string;
}

export interface Call {
  name: string;
  arguments: Record<string, unknown>;
}

export interface Conversation {
  id: string;
  /** Empty: it is named by its first message. */
  title: string;
  created: number;
  updated: number;
  model: string;
  system: string;
  options: Record<string, Value>;
  think: boolean;
  /** Whether answers come with the log-probabilities of their tokens. */
  logprobs: boolean;
  /** How many answers a message gets. */
  answers: number;
  format: Format;
  /** Functions as JSON. */
  tools: string;
  turns: Record<string, Turn>;
  /** Which of the turns after another one is shown, by the id of that one. */
  chosen: Record<string, string>;
}

export const ROOT = "";

/** How many settings of a conversation are not those that a new one has. */
export function countSettings({ system, options, format, tools }: Conversation): number {
  const others = [system.trim(), format.kind !== NO_FORMAT.kind, tools.trim()];
  return Object.keys(options).length + others.filter(Boolean).length;
}

/** What a conversation has whose settings are reset. */
export const NO_SETTINGS = { system: "", options: {}, format: NO_FORMAT, tools: "" } as const;

export function newConversation(id: string, now: number, model = ""): Conversation {
  return {
    ...NO_SETTINGS, id, title: "", created: now, updated: now, model, think: true, logprobs: false, answers: 1,
    turns: {}, chosen: {},
  };
}

/** Return the turns that are shown, first to last. */
export function shownTurns(conversation: Conversation): Turn[] {
  const turns: Turn[] = [];
  for (let id = ROOT; ; ) {
    const turn = conversation.turns[conversation.chosen[id] ?? ROOT];
    if (!turn) return turns;
    turns.push(turn);
    id = turn.id;
  }
}

/** Return the turns up to one and including it, first to last; none for `ROOT`. */
export function turnsTo(conversation: Conversation, id: string): Turn[] {
  const turns: Turn[] = [];
  for (let turn = conversation.turns[id]; turn; turn = conversation.turns[turn.parent]) {
    turns.unshift(turn);
  }
  return turns;
}

/** Return a turn and its alternatives, the oldest first. */
export function alternatives(conversation: Conversation, turn: Turn): Turn[] {
  return Object.values(conversation.turns).filter((other) => other.parent === turn.parent);
}

/** Return for each turn those that follow it, the oldest first. */
export function children(conversation: Conversation): Map<string, Turn[]> {
  const found = new Map<string, Turn[]>();
  for (const turn of Object.values(conversation.turns)) {
    const group = found.get(turn.parent);
    if (group) group.push(turn);
    else found.set(turn.parent, [turn]);
  }
  return found;
}

/** Add a turn and show it. */
export function withTurn(conversation: Conversation, turn: Turn): Conversation {
  return {
    ...conversation,
    updated: turn.created,
    turns: { ...conversation.turns, [turn.id]: turn },
    chosen: { ...conversation.chosen, [turn.parent]: turn.id },
  };
}

/** Change a turn. */
export function changed(conversation: Conversation, id: string, change: Partial<Turn>): Conversation {
  const turn = conversation.turns[id];
  if (!turn) return conversation;
  return { ...conversation, turns: { ...conversation.turns, [id]: { ...turn, ...change } } };
}

/** Show a turn instead of its alternatives. */
export function withChoice(conversation: Conversation, turn: Turn): Conversation {
  return { ...conversation, chosen: { ...conversation.chosen, [turn.parent]: turn.id } };
}

/** Return the messages of a request that continues after a turn. */
export function messagesOf(conversation: Conversation, last: string): Message[] {
  const system = conversation.system.trim();
  const messages: Message[] = system ? [{ role: "system", content: system }] : [];
  for (const turn of turnsTo(conversation, last)) {
    const message: Message = { role: turn.role, content: turn.content };
    if (turn.images?.length) message.images = turn.images.map(base64Of);
    if (turn.calls) message.tool_calls = turn.calls.map((call) => ({ function: call }));
    if (turn.tool) message.tool_name = turn.tool;
    messages.push(message);
  }
  return messages;
}

/** Return the names of the files of each message of such a request; empty where they are not known. */
export function fileNamesOf(conversation: Conversation, last: string): string[][] {
  const names = turnsTo(conversation, last).map(({ images = [] }) => images.map(nameOf));
  return conversation.system.trim() ? [[], ...names] : names;
}

/** Whether a last turn is an answer that has ended early. */
export function canGoOn({ role, state, content }: Turn): boolean {
  return role === "assistant" && state !== "done" && state !== "streaming" && content !== "";
}

/** Return what a conversation is called: its title, else how it begins. */
export function titleOf(conversation: Conversation): string {
  const [begin] = shownTurns(conversation);
  const first = begin?.content.trim().split("\n")[0] ?? "";
  return conversation.title || first.slice(0, 80) || nameOf(begin?.images?.[0] ?? "");
}

/** Whether a conversation has all words of a search in its title or turns, with their reasoning, calls and results. */
export function matches(conversation: Conversation, search: string): boolean {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const texts = Object.values(conversation.turns).flatMap(textsOf);
  const text = [conversation.title, ...texts].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Return all of a turn that can be read. */
function textsOf({ content, reasoning = "", calls = [], tool = "" }: Turn): string[] {
  return [content, reasoning, tool, ...calls.flatMap((call) => [call.name, argumentsOf(call)])];
}

/** Return the arguments of a call as they are shown. */
export function argumentsOf(call: Call): string {
  return JSON.stringify(call.arguments, null, 2);
}

/** Whether an answer of a conversation is being streamed. */
export function isStreamed(conversation: Conversation): boolean {
  return Object.values(conversation.turns).some((turn) => turn.state === "streaming");
}

/**
 * Return a conversation from the database: what is newer than it has its default, and answers that
 * were streamed when the page was closed are unfinished.
 */
export function settled(kept: Conversation): Conversation {
  const conversation = { ...newConversation(kept.id, kept.created), ...kept };
  const open = Object.values(conversation.turns).filter((turn) => turn.state === "streaming");
  return open.reduce((now, turn) => changed(now, turn.id, { state: "interrupted" }), conversation);
}

function base64Of(dataUrl: string): string {
  return dataUrl.slice(dataUrl.indexOf(",") + 1);
}
