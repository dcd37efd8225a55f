/** Conversations in the browser's own database; they are sent nowhere. */

import { type Conversation, settled } from "./tree.ts";

const DATABASE = "tampu";
const CONVERSATIONS = "conversations";

export class ConversationStore {
  readonly #database: IDBDatabase;
  readonly #tabs = new BroadcastChannel(DATABASE);

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
    return found.map(settled).sort((one, other) => other.updated - one.updated);
  }

  async put(conversation: Conversation): Promise<void> {
    await result(this.#objects("readwrite").put(conversation));
    this.#tabs.postMessage(conversation.id);
  }

  async delete(id: string): Promise<void> {
    await result(this.#objects("readwrite").delete(id));
    this.#tabs.postMessage(id);
  }

  /** Call `changed` when another tab has changed a conversation, or deleted it (undefined). */
  watch(changed: (id: string, conversation: Conversation | undefined) => void): void {
    this.#tabs.onmessage = async ({ data: id }: MessageEvent<string>) => {
      changed(id, await result(this.#objects("readonly").get(id) as IDBRequest<Conversation | undefined>));
    };
  }

  #objects(mode: IDBTransactionMode): IDBObjectStore {
    return this.#database.transaction(CONVERSATIONS, mode).objectStore(CONVERSATIONS);
  }
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("the browser's database failed"));
  });
}
