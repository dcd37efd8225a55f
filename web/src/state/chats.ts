/** The conversations, and the answers that are streamed into them. */

import { computed, signal } from "@preact/signals";

import type { Server } from "../api/server.ts";
import { answer } from "../chat/answering.ts";
import type { ConversationStore } from "../chat/store.ts";
import {
  type Conversation, ROOT, type Turn, changed, messagesOf, newConversation, shownTurns, withChoice,
  withTurn,
} from "../chat/tree.ts";
import type { Models } from "./models.ts";

const SAVE_MS = 1000; // while an answer is streamed

export class Chats {
  /** The conversation that was changed last first. */
  readonly all = signal<Conversation[]>([]);
  readonly openId = signal("");
  /** The ids of the conversations that an answer is streamed into. */
  readonly running = signal<ReadonlySet<string>>(new Set());
  readonly open = computed(() => this.find(this.openId.value) ?? this.#draft.value);
  readonly #draft = signal(newConversation(crypto.randomUUID(), Date.now()));
  readonly #aborts = new Map<string, AbortController>();
  readonly #saves = new Map<string, ReturnType<typeof setTimeout>>();
  readonly #server: Server;
  readonly #models: Models;
  readonly #store: ConversationStore;

  constructor(server: Server, models: Models, store: ConversationStore) {
    this.#server = server;
    this.#models = models;
    this.#store = store;
  }

  async read(): Promise<void> {
    this.all.value = await this.#store.all();
    this.#store.watch((id, conversation) => {
      if (!this.#aborts.has(id)) this.#put(id, conversation);
    });
  }

  find(id: string): Conversation | undefined {
    return this.all.value.find((conversation) => conversation.id === id);
  }

  /** Begin a conversation, which is kept as soon as it has a message. */
  begin(): void {
    const { model, system, options, think } = this.open.value;
    this.#draft.value = {
      ...newConversation(crypto.randomUUID(), Date.now(), model), system, options, think,
    };
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
  edit(turn: Turn, content: string): void {
    this.#say(turn.parent, content, turn.images ?? []);
  }

  /** Ask for another answer beside one, or for one to a message that has none. */
  regenerate(turn: Turn): void {
    if (this.isRunning) return;
    this.#ask(this.open.value, turn.role === "user" ? turn.id : turn.parent);
  }

  /** Let an answer that has ended early go on. */
  resume(turn: Turn): void {
    if (this.isRunning) return;
    const change: Partial<Turn> = { state: "streaming" };
    const { error: _, ...kept } = turn;
    const conversation = this.open.value;
    const turns = { ...conversation.turns, [turn.id]: { ...kept, ...change } };
    void this.#run({ ...conversation, turns }, turn.id, turn.id, turn.content);
  }

  choose(turn: Turn): void {
    this.#keep(withChoice(this.open.value, turn));
  }

  stop(id: string): void {
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
      id: crypto.randomUUID(), parent, role: "user", content, created: Date.now(), state: "done",
      ...(images.length ? { images } : {}),
    };
    this.#ask(withTurn(this.open.value, turn), turn.id);
  }

  #ask(conversation: Conversation, parent: string): void {
    const turn: Turn = {
      id: crypto.randomUUID(), parent, role: "assistant", content: "", created: Date.now(),
      state: "streaming", model: conversation.model,
    };
    void this.#run(withTurn(conversation, turn), turn.id, parent, "");
  }

  async #run(conversation: Conversation, id: string, last: string, before: string): Promise<void> {
    const { id: key, model, options } = conversation;
    const messages = messagesOf(conversation, last);
    const canThink = this.#models.can(model, "thinking");
    const abort = new AbortController();
    this.#aborts.set(key, abort);
    this.running.value = new Set([...this.running.value, key]);
    this.#keep(conversation);
    this.openId.value = key;
    const request = {
      model, messages, options, ...(canThink ? { think: conversation.think } : {}),
    };
    await answer(this.#server, request, before, abort.signal, (change) => {
      const now = this.find(key);
      if (now) this.#keep(changed(now, id, change), change.state === undefined);
    });
    this.#aborts.delete(key);
    this.running.value = new Set([...this.running.value].filter((other) => other !== key));
    await this.#models.refresh();
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
