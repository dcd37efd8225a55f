/** The browser's way back closes what covers a narrow screen. */

import { type Signal, effect } from "@preact/signals";

/** The screens on which they cover what is beside them elsewhere; the styles say the same. */
export const PANEL_COVERS = "(max-width: 64rem)";
export const SIDEBAR_COVERS = "(max-width: 48rem)";

interface Entry {
  covers?: string;
}

/**
 * Give what covers the screen an entry in the history while it is shown, so that going back closes it.
 *
 * @param name of what covers; the screens on which it does are those of the media query `where`.
 */
export function closesOnBack(name: string, isShown: Signal<boolean>, where: string): void {
  const narrow = matchMedia(where);
  let hasEntry = false;
  const entry = () => (history.state as Entry | null)?.covers;
  effect(() => {
    if (isShown.value && narrow.matches && !hasEntry) {
      hasEntry = true;
      history.pushState({ covers: name }, "");
    } else if (!isShown.value && hasEntry) {
      hasEntry = false;
      if (entry() === name) history.back();
    }
  });
  addEventListener("popstate", () => {
    if (hasEntry && entry() !== name) {
      hasEntry = false;
      isShown.value = false;
    } else if (!hasEntry && entry() === name) history.back(); // a link has closed it
  });
}
