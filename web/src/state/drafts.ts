/** Messages that are written and not sent. */

export interface Draft {
  text: string;
  images: string[];
}

const KEY = "tampu.draft.";

/** By the id of their conversation; that of a new one is empty. Texts that have room outlive a reload of the tab. */
export class Drafts {
  readonly #all = new Map<string, Draft>();
  readonly #storage: Storage;

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  find(id: string): Draft {
    return this.#all.get(id) ?? { text: this.#storage.getItem(KEY + id) ?? "", images: [] };
  }

  put(id: string, draft: Draft): void {
    this.#all.set(id, draft);
    try {
      this.#storage.removeItem(KEY + id);
      if (draft.text) this.#storage.setItem(KEY + id, draft.text);
    } catch {
      // It is larger than what a browser keeps of a page, so it is kept until a reload.
    }
  }
}
