/** Conversations as files: JSON holds everything, Markdown the turns that are shown. */

import { isObject } from "../api/lines.ts";
import type { Value } from "../api/server.ts";
import { TEXTS } from "../texts.ts";
import { isMedia } from "./files.ts";
import { FORMATS, type Format, NO_FORMAT } from "./formats.ts";
import type { Candidate, Token } from "./token_text.ts";
import {
  type Call, type Conversation, ROOT, type Turn, type Usage, newConversation, shownTurns, titleOf, withTurn,
} from "./tree.ts";

const FORMAT = "tampu-conversations";
const VERSION = 1;
const MARK = /^<!-- (user|assistant) -->$/;
const STATES = ["done", "stopped", "failed", "interrupted", "limit"] as const;

/** The file is not one of this page's, or is damaged. */
export class ImportError extends Error {}

export function toJson(conversations: Conversation[]): string {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

/**
 * Return the conversations of a file, with new ids.
 *
 * Nothing of the file is trusted: unknown fields are dropped, wrong ones are errors.
 */
export function fromJson(text: string, newId: () => string): Conversation[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new ImportError(TEXTS.importing.notJson);
  }
  if (!isObject(value) || value.format !== FORMAT || !Array.isArray(value.conversations)) {
    throw new ImportError(TEXTS.importing.noConversations);
  }
  if (value.version !== VERSION) throw new ImportError(TEXTS.importing.otherVersion);
  return value.conversations.map((one) => readConversation(one, newId));
}

/** Return those that are not among the conversations that are here, as their times and titles tell. */
export function withoutKnown(read: Conversation[], here: Conversation[]): Conversation[] {
  const identity = (one: Conversation) => JSON.stringify([one.created, one.updated, titleOf(one)]);
  const known = new Set(here.map(identity));
  return read.filter((one) => !known.has(identity(one)));
}

export function toMarkdown(conversation: Conversation): string {
  const parts = [`# ${titleOf(conversation).replaceAll("\n", " ")}`];
  if (conversation.system) parts.push(`<!-- system -->\n\n${escaped(conversation.system)}`);
  for (const turn of shownTurns(conversation)) {
    if (turn.role === "tool" || turn.content === "") continue;
    parts.push(`<!-- ${turn.role} -->\n\n${escaped(turn.content)}`);
  }
  return `${parts.join("\n\n")}\n`;
}

/** Return the conversation that `toMarkdown` has written; it has no branches. */
export function fromMarkdown(text: string, newId: () => string, now: number): Conversation {
  const [head = "", ...parts] = text.split(/^(?=<!-- (?:system|user|assistant) -->$)/m);
  const title = /^# (.*)$/m.exec(head)?.[1]?.trim() ?? "";
  let conversation: Conversation = { ...newConversation(newId(), now), title };
  let parent = ROOT;
  for (const part of parts) {
    const end = part.indexOf("\n");
    const mark = end < 0 ? part : part.slice(0, end);
    const content = end < 0 ? "" : unescaped(part.slice(end + 1)).trim();
    const role = MARK.exec(mark)?.[1];
    if (role !== "user" && role !== "assistant") {
      conversation = { ...conversation, system: content };
      continue;
    }
    const turn: Turn = { id: newId(), parent, role, content, created: now, state: "done" };
    conversation = withTurn(conversation, turn);
    parent = turn.id;
  }
  if (parent === ROOT) throw new ImportError(TEXTS.importing.noConversations);
  return conversation;
}

function escaped(text: string): string {
  return text.trim().replaceAll(/^(\\*<!-- (?:system|user|assistant) -->)$/gm, "\\$1");
}

function unescaped(text: string): string {
  return text.replaceAll(/^\\(\\*<!-- (?:system|user|assistant) -->)$/gm, "$1");
}

function readConversation(value: unknown, newId: () => string): Conversation {
  const from = object(value, TEXTS.importing.conversation);
  const given = Object.values(object(from.turns, "turns")).map((turn) => object(turn, TEXTS.importing.turn));
  const ids = new Map(given.map((turn) => [textOf(turn.id, "id"), newId()]));
  let conversation: Conversation = {
    ...newConversation(newId(), numberOf(from.created, "created")),
    title: textOf(from.title, "title"),
    model: textOf(from.model, "model"),
    system: textOf(from.system, "system"),
    options: optionsOf(from.options),
    think: from.think !== false,
    logprobs: from.logprobs === true,
    answers: from.answers === undefined ? 1 : numberOf(from.answers, "answers"),
    format: from.format === undefined ? NO_FORMAT : formatOf(object(from.format, "format")),
    tools: from.tools === undefined ? "" : textOf(from.tools, "tools"),
  };
  for (const one of given) {
    const turn = readTurn(one, ids);
    // Parents come before their turns, so a turn cannot be its own ancestor.
    if (turn.parent !== ROOT && !conversation.turns[turn.parent]) {
      throw new ImportError(TEXTS.importing.noTurnBefore);
    }
    conversation = withTurn(conversation, turn);
  }
  const chosen = object(from.chosen, "chosen");
  for (const turn of Object.values(conversation.turns)) {
    const old = [...ids].find(([, id]) => id === turn.parent)?.[0] ?? ROOT;
    const choice = chosen[old];
    if (typeof choice === "string" && ids.get(choice) === turn.id) {
      conversation = { ...conversation, chosen: { ...conversation.chosen, [turn.parent]: turn.id } };
    }
  }
  return { ...conversation, updated: numberOf(from.updated, "updated") };
}

function readTurn(from: Record<string, unknown>, ids: Map<string, string>): Turn {
  const { role, images, usage } = from;
  if (role !== "user" && role !== "assistant" && role !== "tool") throw new ImportError(TEXTS.importing.wrong("role"));
  const parent = textOf(from.parent, "parent");
  const turn: Turn = {
    id: ids.get(textOf(from.id, "id")) ?? ROOT,
    parent: parent === ROOT ? ROOT : (ids.get(parent) ?? "missing"),
    role,
    content: textOf(from.content, "content"),
    created: numberOf(from.created, "created"),
    state: STATES.find((state) => state === from.state) ?? "interrupted",
  };
  if (images !== undefined) {
    if (!Array.isArray(images) || !images.every(isMedia)) {
      throw new ImportError(TEXTS.importing.wrong("images"));
    }
    turn.images = images;
  }
  if (from.reasoning !== undefined) turn.reasoning = textOf(from.reasoning, "reasoning");
  if (from.reasoningMs !== undefined) turn.reasoningMs = numberOf(from.reasoningMs, "reasoningMs");
  if (from.model !== undefined) turn.model = textOf(from.model, "model");
  if (from.format !== undefined) turn.format = formatOf({ kind: from.format, text: "" }).kind;
  if (from.limit !== undefined) turn.limit = textOf(from.limit, "limit");
  if (from.error !== undefined) turn.error = textOf(from.error, "error");
  if (from.tokens !== undefined) turn.tokens = listOf(from.tokens, "tokens").map(tokenOf);
  if (from.tokensFrom !== undefined) turn.tokensFrom = numberOf(from.tokensFrom, "tokensFrom");
  if (from.calls !== undefined) turn.calls = listOf(from.calls, "calls").map(callOf);
  if (from.tool !== undefined) turn.tool = textOf(from.tool, "tool");
  if (usage !== undefined) turn.usage = usageOf(object(usage, "usage"));
  return turn;
}

function usageOf(from: Record<string, unknown>): Usage {
  return {
    promptTokens: numberOf(from.promptTokens, "promptTokens"),
    cachedTokens: numberOf(from.cachedTokens, "cachedTokens"),
    tokens: numberOf(from.tokens, "tokens"),
    tokensPerSecond: numberOf(from.tokensPerSecond, "tokensPerSecond"),
    firstTokenMs: numberOf(from.firstTokenMs, "firstTokenMs"),
    ...(from.loadMs === undefined ? {} : { loadMs: numberOf(from.loadMs, "loadMs") }),
    droppedTokens: numberOf(from.droppedTokens, "droppedTokens"),
    ...(from.isMore === true ? { isMore: true } : {}),
  };
}

function formatOf({ kind, text }: Record<string, unknown>): Format {
  const known = FORMATS.find((one) => one === kind);
  if (!known) throw new ImportError(TEXTS.importing.wrong("format"));
  return { kind: known, text: textOf(text, TEXTS.importing.textOfFormat) };
}

function callOf(value: unknown): Call {
  const from = object(value, TEXTS.importing.call);
  return { name: textOf(from.name, "name"), arguments: object(from.arguments, "arguments") };
}

function tokenOf(value: unknown): Token {
  const from = object(value, TEXTS.importing.token);
  return { ...candidateOf(from), top: listOf(from.top, "top").map(candidateOf) };
}

function candidateOf(value: unknown): Candidate {
  const { text, logprob, bytes } = object(value, TEXTS.importing.token);
  const candidate = { text: textOf(text, "text"), logprob: numberOf(logprob, "logprob") };
  if (bytes === undefined) return candidate;
  return { ...candidate, bytes: listOf(bytes, "bytes").map((byte) => numberOf(byte, TEXTS.importing.byte)) };
}

function optionsOf(value: unknown): Record<string, Value> {
  const options: Record<string, Value> = {};
  for (const [name, one] of Object.entries(object(value, "options"))) {
    const isList = Array.isArray(one) && one.every((text) => typeof text === "string");
    if (!isList && !["number", "string", "boolean"].includes(typeof one)) {
      throw new ImportError(TEXTS.importing.wrongOption(name));
    }
    options[name] = one as Value;
  }
  return options;
}

function object(value: unknown, what: string): Record<string, unknown> {
  if (!isObject(value)) throw new ImportError(TEXTS.importing.notObject(what));
  return value;
}

function listOf(value: unknown, what: string): unknown[] {
  if (!Array.isArray(value)) throw new ImportError(TEXTS.importing.notList(what));
  return value;
}

function textOf(value: unknown, what: string): string {
  if (typeof value !== "string") throw new ImportError(TEXTS.importing.notText(what));
  return value;
}

function numberOf(value: unknown, what: string): number {
  if (typeof value !== "number" || !Number.isFinite(value)) {
    throw new ImportError(TEXTS.importing.notNumber(what));
  }
  return value;
}
