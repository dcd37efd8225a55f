/** What the user has set for this browser: the key, the theme, the width of the sidebar, and the URLs of tools. */

import { signal } from "@preact/signals";

import type { Colour } from "../chat/token_text.ts";
import { TEXTS } from "../texts.ts";
import type { Unfinished } from "./transfers.ts";

export type Theme = "system" | "light" | "dark";

export const THEMES: readonly Theme[] = ["system", "light", "dark"];
const KEY = "tampu.key";
const THEME = "tampu.theme";
const COLOUR = "tampu.colour";
const MODEL = "tampu.model";
const PULLS = "tampu.pulls";
const TOOL_URLS = "tampu.tools";
const SIDEBAR = "tampu.sidebar";
const COLLAPSED = "collapsed";

export class Settings {
  readonly theme = signal<Theme>("system");
  /** Whether the server has refused the key, and another one is asked for. */
  readonly asksForKey = signal(false);
  /** Whether the sidebar of a wide screen has only its icons. */
  readonly isCollapsed = signal(false);
  /** What the colour of tokens says. */
  readonly colour = signal<Colour>("probability");
  /** The URLs to which calls of tools may be sent. */
  readonly toolUrls = signal<readonly string[]>([]);
  /** The key to send; empty: none. */
  readonly key = signal("");
  /** How often the user was asked for a key, and has given one, or none. */
  replies = 0;
  readonly #storage: Storage;

  constructor(storage: Storage) {
    this.#storage = storage;
    this.key.value = storage.getItem(KEY) ?? "";
    if (storage.getItem(COLOUR) === "entropy") this.colour.value = "entropy";
    this.isCollapsed.value = storage.getItem(SIDEBAR) === COLLAPSED;
    this.toolUrls.value = this.#lines(TOOL_URLS);
    const theme = storage.getItem(THEME);
    this.setTheme(THEMES.find((one) => one === theme) ?? "system");
  }

  setColour(colour: Colour): void {
    this.colour.value = colour;
    this.#storage.setItem(COLOUR, colour);
  }

  collapse(isCollapsed: boolean): void {
    this.isCollapsed.value = isCollapsed;
    if (isCollapsed) this.#storage.setItem(SIDEBAR, COLLAPSED);
    else this.#storage.removeItem(SIDEBAR);
  }

  /** Return the key; another tab may have changed it. */
  read(): string {
    this.key.value = this.#storage.getItem(KEY) ?? "";
    return this.key.value;
  }

  refused(): void {
    this.asksForKey.value = true;
  }

  /** Why the server asks for a key. */
  get keyProblem(): string {
    return this.key.value ? TEXTS.keyRefused : TEXTS.keyMissing;
  }

  setKey(key: string): void {
    if (key) this.#storage.setItem(KEY, key);
    else this.#storage.removeItem(KEY);
    this.key.value = key;
    this.replied();
  }

  /** Ask for no key any more until a request that is sent from now on is refused. */
  replied(): void {
    this.replies++;
    this.asksForKey.value = false;
  }

  /** The model that was chosen last. */
  get model(): string {
    return this.#storage.getItem(MODEL) ?? "";
  }

  set model(name: string) {
    this.#storage.setItem(MODEL, name);
  }

  /** The pulls that have not ended, of all tabs. */
  get pulls(): Unfinished[] {
    return this.#lines(PULLS).map((line) => {
      const [name = "", completed, total] = line.split("\t");
      return { name, completed: Number(completed ?? 0), total: Number(total ?? 0) };
    });
  }

  keepPull({ name, completed, total }: Unfinished): void {
    this.forgetPull(name);
    this.#storage.setItem(PULLS, [...this.#lines(PULLS), [name, completed, total].join("\t")].join("\n"));
  }

  forgetPull(name: string): void {
    const others = this.#lines(PULLS).filter((line) => line.split("\t")[0] !== name);
    this.#storage.setItem(PULLS, others.join("\n"));
  }

  /** Whether calls may be sent to a URL; another tab may have changed that. */
  allowsTool(url: string): boolean {
    return this.#lines(TOOL_URLS).includes(url);
  }

  /** Let calls be sent to a URL from now on, or no longer. */
  allowTool(url: string, isAllowed: boolean): void {
    const others = this.#lines(TOOL_URLS).filter((other) => other !== url);
    this.toolUrls.value = isAllowed ? [...others, url] : others;
    this.#storage.setItem(TOOL_URLS, this.toolUrls.value.join("\n"));
  }

  setTheme(theme: Theme): void {
    this.theme.value = theme;
    this.#storage.setItem(THEME, theme);
    document.documentElement.dataset.theme = theme;
  }

  nextTheme(): void {
    const at = THEMES.indexOf(this.theme.value);
    this.setTheme(THEMES[(at + 1) % THEMES.length] ?? "system");
  }

  #lines(name: string): string[] {
    return (this.#storage.getItem(name) ?? "").split("\n").filter(Boolean);
  }
}
