/** The conversations, and the answers that are streamed into them. */

import { computed, signal } from "@preact/signals";

import { messageOf } from "../api/http.ts";
import type { ChatRequest, Server } from "../api/server.ts";
import { answer } from "../chat/answering.ts";
import { problemOf, requestFormat, requestTools } from "../chat/formats.ts";
import { newId } from "../chat/ids.ts";
import { type Candidate, isCovered, textWith } from "../chat/token_text.ts";
import type { ConversationStore } from "../chat/store.ts";
import { areSentAlone, resultsOf, urlsOf } from "../chat/tool_calls.ts";
import {
  type Conversation, ROOT, type Turn, changed, fileNamesOf, isStreamed, messagesOf, newConversation, shownTurns, withChoice, withTurn,
} from "../chat/tree.ts";
import type { Models } from "./models.ts";
import type { Settings } from "./settings.ts";

const SAVE_MS = 1000; // while an answer is streamed
const TOP_LOGPROBS = 10;

export class Chats {
  /** The conversation that was changed last first. */
  readonly all = signal<Conversation[]>([]);
  readonly openId = signal("");
  /** The ids of the conversations that an answer is streamed into, by this tab or another one. */
  readonly running = computed(() => new Set([...this.#here.value, ...this.#elsewhere.value]));
  /** The id of the turn whose answers are shown side by side; empty: one at a time. */
  readonly sideBySide = signal(ROOT);
  readonly open = computed(() => this.find(this.openId.value) ?? this.#draft.value);
  /** The id of the message that was sent last in this tab. */
  readonly sent = signal(ROOT);
  readonly #draft = signal(newConversation(newId(), Date.now()));
  readonly #here = signal<ReadonlySet<string>>(new Set());
  readonly #elsewhere = signal<ReadonlySet<string>>(new Set());
  readonly #aborts = new Map<string, AbortController>();
  readonly #saves = new Map<string, ReturnType<typeof setTimeout>>();
  readonly #server: Server;
  readonly #models: Models;
  readonly #settings: Settings;
  readonly #store: ConversationStore;

  constructor(server: Server, models: Models, settings: Settings, store: ConversationStore) {
    this.#server = server;
    this.#models = models;
    this.#settings = settings;
    this.#store = store;
  }

  async read(): Promise<void> {
    this.all.value = await this.#store.all();
    this.#elsewhere.value = new Set(this.all.value.filter(isStreamed).map((one) => one.id));
    const stops = (id: string) => this.#aborts.get(id)?.abort();
    const replaced = (id: string, conversation: Conversation | undefined) => {
      if (this.#aborts.has(id)) return;
      this.#put(id, conversation);
      const isElsewhere = conversation !== undefined && isStreamed(conversation);
      this.#elsewhere.value = changedSet(this.#elsewhere.value, id, isElsewhere);
    };
    this.#store.watch({ changed: replaced, stops }, this.all.value);
  }

  find(id: string): Conversation | undefined {
    return this.all.value.find((conversation) => conversation.id === id);
  }

  /** Begin a conversation with the model of the open one, which is kept as soon as it has a message. */
  begin(): void {
    this.#draft.value = newConversation(newId(), Date.now(), this.open.value.model);
    this.openId.value = ROOT;
  }

  /** Change the settings of the open conversation. */
  set(change: Partial<Conversation>): void {
    const conversation = { ...this.open.value, ...change };
    if (this.find(conversation.id)) this.#keep(conversation);
    else this.#draft.value = conversation;
  }

  add(conversations: Conversation[]): void {
    for (const conversation of conversations) this.#keep(conversation);
  }

  async remove(id: string): Promise<void> {
    this.stop(id);
    clearTimeout(this.#saves.get(id));
    this.#saves.delete(id);
    this.#put(id, undefined);
    await this.#store.delete(id);
    if (this.openId.value === id) this.begin();
  }

  /** Whether an answer is streamed into the open conversation. */
  get isRunning(): boolean {
    return this.running.value.has(this.open.value.id);
  }

  /** Add a message after the last one that is shown, and ask for an answer. */
  send(content: string, images: string[]): void {
    const last = shownTurns(this.open.value).at(-1);
    this.#say(last?.id ?? ROOT, content, images);
  }

  /** Add another version of a message beside it, and ask for an answer. */
  edit(turn: Turn, content: string, images: string[]): void {
    this.#say(turn.parent, content, images);
  }

  /** Ask for another answer beside one, or for one to a message that has none. */
  regenerate(turn: Turn): void {
    if (this.isRunning) return;
    this.#ask(this.open.value, turn.role === "assistant" ? turn.parent : turn.id, 1);
  }

  /** Let an answer that has ended early go on. */
  resume(turn: Turn): void {
    if (this.isRunning) return;
    const change: Partial<Turn> = { state: "streaming" };
    const { error: _, ...kept } = turn;
    const conversation = this.open.value;
    const turns = { ...conversation.turns, [turn.id]: { ...kept, ...change } };
    void this.#run({ ...conversation, turns }, [turn.id], turn.id);
  }

  /** Let an answer go on from one of its tokens, with another token in its place: a new branch. */
  branch(turn: Turn, at: number, other: Candidate): void {
    const content = textWith(turn, at, other);
    if (this.isRunning || content === null) return;
    const { parent, role, tokens = [], tokensFrom = 0, reasoning, reasoningMs = 0, format } = turn;
    const { value: conversation } = this.open;
    const goesOn = other.text !== "";
    const branch: Turn = {
      id: newId(), parent, role, content, created: Date.now(), tokensFrom,
      model: conversation.model,
      ...(format === undefined ? {} : { format }),
      ...(reasoning ? { reasoning, reasoningMs } : {}),
      tokens: [...tokens.slice(0, at), { ...other, top: tokens[at]?.top ?? [] }],
      state: goesOn ? "streaming" : "done",
    };
    const branched = withTurn(conversation, branch);
    if (goesOn) void this.#run(branched, [branch.id], branch.id);
    else this.#keep(branched);
  }

  /**
   * Add the results of the tools that an answer calls, and ask for the next answer. Where `given` is
   * empty, the call is sent to the URL of its tool, if it has one.
   */
  async answerCalls(turn: Turn, given: string[]): Promise<void> {
    if (this.isRunning) return;
    const { error: _, ...kept } = turn;
    const { value: conversation } = this.open;
    this.#keep({ ...conversation, turns: { ...conversation.turns, [turn.id]: kept } });
    let results: string[] | null = null;
    await this.#while(conversation.id, async (signal) => {
      results = await this.#results(conversation.id, turn, given, signal);
    });
    this.#goOn(conversation.id, turn, results);
  }

  choose(turn: Turn): void {
    this.sideBySide.value = ROOT;
    this.#keep(withChoice(this.open.value, turn));
  }

  stop(id: string): void {
    if (this.#elsewhere.value.has(id)) this.#store.stop(id);
    this.#aborts.get(id)?.abort();
  }

  /** Put everything into the database that waits for it. */
  flush(): void {
    for (const [id, timer] of this.#saves) {
      clearTimeout(timer);
      this.#save(id);
    }
  }

  #say(parent: string, content: string, images: string[]): void {
    if (this.isRunning) return;
    const turn: Turn = {
      id: newId(), parent, role: "user", content, created: Date.now(), state: "done",
      ...(images.length ? { images } : {}),
    };
    const conversation = withTurn(this.open.value, turn);
    this.sent.value = turn.id;
    this.#ask(conversation, turn.id, conversation.answers);
  }

  #ask(conversation: Conversation, parent: string, answers: number): void {
    const turns = Array.from({ length: answers }, (): Turn => ({
      id: newId(), parent, role: "assistant", content: "", created: Date.now(),
      state: "streaming", model: conversation.model,
      ...(conversation.format.kind === "none" ? {} : { format: conversation.format.kind }),
    }));
    if (this.open.value.id === conversation.id) this.sideBySide.value = answers > 1 ? parent : ROOT;
    const added = turns.reduce(withTurn, conversation);
    const [first] = turns;
    if (first) void this.#run(withChoice(added, first), turns.map((turn) => turn.id), parent);
  }

  /** Stream an answer into each of these turns, at once. */
  async #run(conversation: Conversation, ids: string[], last: string): Promise<void> {
    const { id: key } = conversation;
    const problem = problemOf(() => this.#request(conversation, last));
    if (problem) {
      const failed: Partial<Turn> = { state: "failed", error: problem };
      this.#keep(ids.reduce((now, id) => changed(now, id, failed), conversation));
      return;
    }
    const isOpen = this.open.value.id === key; // results of tools go on while another one is looked at
    this.#keep(conversation);
    if (isOpen) this.openId.value = key;
    const request = this.#request(conversation, last);
    const files = fileNamesOf(conversation, last);
    const stream = async (id: string, at: number, signal: AbortSignal) => {
      const turn = conversation.turns[id];
      const content = turn?.content ?? "";
      const before = turn && isCovered(turn) ? turn : { content, tokensFrom: content.length };
      await answer(this.#server, seeded(request, at), before, signal, (change) => {
        const now = this.find(key);
        if (now) this.#keep(changed(now, id, change), change.state === undefined);
      }, files);
    };
    let results: string[] | null = null;
    let called: Turn | undefined;
    await this.#while(key, async (signal) => {
      await Promise.all(ids.map((id, at) => stream(id, at, signal)));
      const [only = "", ...others] = ids;
      const now = this.find(key);
      called = others.length ? undefined : now?.turns[only];
      if (!now || called?.state !== "done") return;
      const isAllowed = (url: string) => this.#settings.allowsTool(url);
      if (areSentAlone(now, called, isAllowed)) results = await this.#results(key, called, [], signal);
    });
    await this.#models.refresh();
    if (called) this.#goOn(key, called, results);
  }

  /** Work for a conversation, which can be stopped, and which no other tab works for meanwhile. */
  async #while(key: string, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    const abort = new AbortController();
    this.#aborts.set(key, abort);
    this.#here.value = changedSet(this.#here.value, key, true);
    await this.#store.stream(key, () => work(abort.signal));
    this.#aborts.delete(key);
    this.#here.value = changedSet(this.#here.value, key, false);
  }

  /** Return the results of an answer's calls; null: they were stopped, or failed, which the turn tells. */
  async #results(key: string, turn: Turn, given: string[], signal: AbortSignal): Promise<string[] | null> {
    const conversation = this.find(key);
    if (!conversation) return null;
    try {
      return await resultsOf(this.#server, turn.calls ?? [], urlsOf(conversation, turn), given, signal);
    } catch (error) {
      const now = this.find(key);
      if (now && !signal.aborted) this.#keep(changed(now, turn.id, { error: messageOf(error) }));
      return null;
    }
  }

  /** Add the results of an answer's calls after it, and ask for the next answer. */
  #goOn(key: string, turn: Turn, results: string[] | null): void {
    let conversation = this.find(key);
    if (!conversation || !results) return;
    let parent = turn.id;
    for (const [at, content] of results.entries()) {
      const result: Turn = {
        id: newId(), parent, role: "tool", content, created: Date.now(), state: "done",
        tool: turn.calls?.[at]?.name ?? "",
      };
      conversation = withTurn(conversation, result);
      parent = result.id;
    }
    this.#ask(conversation, parent, conversation.answers);
  }

  /** Return the request for an answer that follows a turn, or continues it. */
  #request(conversation: Conversation, last: string): ChatRequest {
    const { model, options, logprobs } = conversation;
    const format = requestFormat(conversation.format);
    const tools = requestTools(conversation.tools);
    return {
      model, messages: messagesOf(conversation, last), options,
      ...(this.#models.can(model, "thinking") ? { think: conversation.think } : {}),
      ...(logprobs ? { logprobs, top_logprobs: TOP_LOGPROBS, entropy: true } : {}),
      ...(format === undefined ? {} : { format }),
      ...(tools ? { tools } : {}),
    };
  }

  /** Put a conversation into the list, and into the database now or, if it changes often, soon. */
  #keep(conversation: Conversation, isSoon = false): void {
    const { id } = conversation;
    this.#put(id, conversation);
    const waiting = this.#saves.get(id);
    if (isSoon && waiting !== undefined) return;
    clearTimeout(waiting);
    if (isSoon) this.#saves.set(id, setTimeout(() => this.#save(id), SAVE_MS));
    else this.#save(id);
  }

  /** Put a conversation into the list, or take it out. */
  #put(id: string, conversation: Conversation | undefined): void {
    const others = this.all.value.filter((other) => other.id !== id);
    this.all.value = [...(conversation ? [conversation] : []), ...others].sort(
      (one, other) => other.updated - one.updated,
    );
  }

  #save(id: string): void {
    this.#saves.delete(id);
    const latest = this.find(id);
    if (latest) void this.#store.put(latest);
  }
}

/** Return a set with a member more, or without it. */
function changedSet(set: ReadonlySet<string>, member: string, isIn: boolean): ReadonlySet<string> {
  return isIn ? new Set([...set, member]) : new Set([...set].filter((other) => other !== member));
}

/** Return a request with a seed of its own for each of several answers, if it has one. */
function seeded(request: ChatRequest, at: number): ChatRequest {
  const { seed } = request.options;
  if (typeof seed !== "number") return request;
  return { ...request, options: { ...request.options, seed: seed + at } };
}
