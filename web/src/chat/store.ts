/** Conversations in the browser's own database; they are sent nowhere. */

import { TEXTS } from "../texts.ts";
import { type Conversation, isStreamed, settled } from "./tree.ts";

const DATABASE = "tampu";
const CONVERSATIONS = "conversations";

/** What tabs tell each other: a conversation has changed, or its answers shall be stopped. */
interface News {
  id: string;
  stops?: true;
}

/** What other tabs do to a conversation. */
export interface Watcher {
  /** It was changed, or deleted (undefined). */
  changed(id: string, conversation: Conversation | undefined): void;
  /** Its answers shall be stopped, wherever they are streamed. */
  stops(id: string): void;
}

/**
 * The tab that streams answers into a conversation holds a lock, so that the others know when it was
 * closed. Over plain HTTP from another machine browsers have no locks: there such answers look
 * unfinished until the tab that streams them says more.
 */
export class ConversationStore {
  readonly #database: IDBDatabase;
  readonly #locks = (navigator as Partial<Navigator>).locks;
  readonly #tabs = new BroadcastChannel(DATABASE);
  /** The conversations that other tabs stream into. */
  readonly #awaited = new Set<string>();

  private constructor(database: IDBDatabase) {
    this.#database = database;
  }

  static async open(): Promise<ConversationStore> {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
    };
    return new ConversationStore(await result(opening));
  }

  /** Return all conversations, the one that was changed last first. */
  async all(): Promise<Conversation[]> {
    const found = await result(this.#objects("readonly").getAll() as IDBRequest<Conversation[]>);
    const { held = [] } = (await this.#locks?.query()) ?? {};
    const names = new Set(held.map((lock) => lock.name));
    return found
      .map((kept) => (names.has(lockOf(kept.id)) ? kept : settled(kept)))
      .sort((one, other) => other.updated - one.updated);
  }

  async put(conversation: Conversation): Promise<void> {
    await result(this.#objects("readwrite").put(conversation));
    this.#tell({ id: conversation.id });
  }

  async delete(id: string): Promise<void> {
    await result(this.#objects("readwrite").delete(id));
    this.#tell({ id });
  }

  /** Stream answers into a conversation, which no other tab does meanwhile. */
  async stream(id: string, work: () => Promise<unknown>): Promise<void> {
    await (this.#locks ? this.#locks.request(lockOf(id), work) : work());
  }

  /** Ask the tab that streams into a conversation to stop. */
  stop(id: string): void {
    this.#tell({ id, stops: true });
  }

  /** Follow what other tabs do, and what they are doing to these conversations already. */
  watch(watcher: Watcher, conversations: Conversation[]): void {
    this.#tabs.onmessage = async ({ data: { id, stops } }: MessageEvent<News>) => {
      if (stops) watcher.stops(id);
      else this.#see(watcher, id, await this.#get(id));
    };
    for (const one of conversations) if (isStreamed(one)) void this.#settle(watcher, one.id);
  }

  #see(watcher: Watcher, id: string, kept: Conversation | undefined): void {
    const isEnded = kept && isStreamed(kept) && !this.#locks;
    watcher.changed(id, isEnded ? settled(kept) : kept);
    if (kept && isStreamed(kept)) void this.#settle(watcher, id);
  }

  /** Wait until no tab streams into a conversation. */
  async #settle(watcher: Watcher, id: string): Promise<void> {
    if (!this.#locks || this.#awaited.has(id)) return;
    this.#awaited.add(id);
    const kept = await this.#locks.request(lockOf(id), () => this.#get(id));
    this.#awaited.delete(id);
    watcher.changed(id, kept && settled(kept));
  }

  #get(id: string): Promise<Conversation | undefined> {
    return result(this.#objects("readonly").get(id) as IDBRequest<Conversation | undefined>);
  }

  #tell(news: News): void {
    this.#tabs.postMessage(news);
  }

  #objects(mode: IDBTransactionMode): IDBObjectStore {
    return this.#database.transaction(CONVERSATIONS, mode).objectStore(CONVERSATIONS);
  }
}

function lockOf(id: string): string {
  return `tampu.${id}`;
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error(TEXTS.databaseFailed));
  });
}
