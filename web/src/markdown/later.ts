/** A module that is loaded when it is first needed, and is there at once from then on. */
export class Later<T> {
  /** The module; null until it has been loaded. */
  now: T | null = null;
  readonly #load: () => Promise<T>;

  constructor(load: () => Promise<T>) {
    this.#load = load;
  }

  async load(): Promise<T> {
    return (this.now ??= await this.#load());
  }
}
