/** Where the focus goes after a change of what is shown, and the dialog for files. */

/** Put the focus on the first such element once what has changed is drawn, before any other key can come. */
export function focusSoon(selector: string): void {
  queueMicrotask(() => document.querySelector<HTMLElement>(selector)?.focus()); // Preact draws in one, too
}

/** Ask for a file that goes with the message: browsers do so after a click only. */
export function chooseFile(): void {
  document.querySelector<HTMLElement>(".composer input[type=file]")?.click();
}
