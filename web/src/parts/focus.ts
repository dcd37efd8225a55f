/** Where the focus goes after a change of what is shown. */

/** Put the focus on the first such element once what has changed is drawn, before any other key can come. */
export function focusSoon(selector: string): void {
  queueMicrotask(() => document.querySelector<HTMLElement>(selector)?.focus()); // Preact draws in one, too
}
