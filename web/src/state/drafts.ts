/** Messages that are written and not sent. */

export interface Draft {
  text: string;
  images: string[];
}

const KEY = "tampu.draft.";

/** By the id of their conversation; that of a new one is empty. Texts outlive a reload of the tab. */
export class Drafts {
  readonly #images = new Map<string, string[]>();
  readonly #storage: Storage;

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  find(id: string): Draft {
    return { text: this.#storage.getItem(KEY + id) ?? "", images: this.#images.get(id) ?? [] };
  }

  put(id: string, { text, images }: Draft): void {
    if (text) this.#storage.setItem(KEY + id, text);
    else this.#storage.removeItem(KEY + id);
    this.#images.set(id, images);
  }
}
