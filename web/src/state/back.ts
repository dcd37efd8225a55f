/** The browser's way back closes what covers a narrow screen. */

import { type Signal, effect } from "@preact/signals";

/** The screens on which they cover what is beside them elsewhere; the styles say the same. */
export const PANEL_COVERS = "(max-width: 64rem)";
export const SIDEBAR_COVERS = "(max-width: 48rem)";

interface Entry {
  covers?: string;
}

interface Cover {
  name: string;
  isShown: Signal<boolean>;
  narrow: MediaQueryList;
  /** Whether an entry of the history is its own. */
  hasEntry: boolean;
}

/** Gives what covers the screen an entry in the history while it is shown, so that going back closes it. */
export class Back {
  readonly #covers: Cover[] = [];
  /** Whether the browser goes back from an entry, which takes a moment: one that is added then would be left, too. */
  #isLeaving = false;

  constructor() {
    addEventListener("popstate", () => this.#arrive());
  }

  /** @param name of what covers; the screens on which it does are those of the media query `where`. */
  closes(name: string, isShown: Signal<boolean>, where: string): void {
    const cover = { name, isShown, narrow: matchMedia(where), hasEntry: false };
    this.#covers.push(cover);
    effect(() => (isShown.value ? this.#enter(cover) : this.#leave(cover)));
  }

  #enter(cover: Cover): void {
    if (this.#isLeaving || cover.hasEntry || !cover.narrow.matches) return;
    cover.hasEntry = true;
    history.pushState({ covers: cover.name }, "");
  }

  #leave(cover: Cover): void {
    if (!cover.hasEntry) return;
    cover.hasEntry = false;
    if (current() === cover.name) this.#goBack();
  }

  #goBack(): void {
    this.#isLeaving = true;
    history.back();
  }

  #arrive(): void {
    const wasLeaving = this.#isLeaving;
    this.#isLeaving = false;
    for (const cover of this.#covers) {
      if (cover.hasEntry && current() !== cover.name) {
        cover.hasEntry = false;
        cover.isShown.value = false;
      } else if (!cover.hasEntry && current() === cover.name) this.#goBack(); // a link has closed it
    }
    if (!wasLeaving) return;
    for (const cover of this.#covers) if (cover.isShown.value) this.#enter(cover); // shown meanwhile
  }
}

function current(): string | undefined {
  return (history.state as Entry | null)?.covers;
}
