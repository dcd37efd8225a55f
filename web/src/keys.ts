/** Every action that has a key; `?` shows this table. */

import { alternatives, canGoOn, shownTurns } from "./chat/tree.ts";
import { focusSoon } from "./parts/focus.ts";
import type { App } from "./state/app.ts";
import { PANEL_COVERS, SIDEBAR_COVERS } from "./state/back.ts";
import { TEXTS } from "./texts.ts";

interface Action {
  keys: string;
  text: string;
  /** Absent: the field with the focus does it. */
  run?: (app: App) => void;
}

export const ACTIONS: readonly Action[] = [
  { keys: "Enter", text: TEXTS.keyActions.send },
  { keys: "Shift+Enter", text: TEXTS.keyActions.newLine },
  { keys: "Escape", text: TEXTS.keyActions.stopOrLeave, run: escape },
  { keys: "i", text: TEXTS.keyActions.write, run: (app) => app.write() },
  { keys: "n", text: TEXTS.newChat, run: newChat },
  { keys: "h", text: TEXTS.keyActions.sidebar, run: (app) => app.toggleSidebar() },
  { keys: "/", text: TEXTS.keyActions.search, run: (app) => app.search() },
  { keys: "j", text: TEXTS.keyActions.next, run: (app) => step(app, 1) },
  { keys: "k", text: TEXTS.keyActions.previous, run: (app) => step(app, -1) },
  { keys: "m", text: TEXTS.models, run: (app) => app.go("#/models") },
  { keys: "l", text: TEXTS.inside, run: (app) => app.go("#/inside") },
  { keys: "d", text: TEXTS.compare, run: (app) => app.go("#/compare") },
  { keys: "o", text: TEXTS.tokenizer, run: (app) => app.go("#/tokens") },
  { keys: "c", text: TEXTS.keyActions.back, run: (app) => app.go(`#/chat/${app.chats.openId.value}`) },
  { keys: "e", text: TEXTS.keyActions.edit, run: edit },
  { keys: "r", text: TEXTS.keyActions.regenerate, run: regenerate },
  { keys: "g", text: TEXTS.keyActions.goOn, run: goOn },
  { keys: "[", text: TEXTS.keyActions.earlier, run: (app) => branch(app, -1) },
  { keys: "]", text: TEXTS.keyActions.later, run: (app) => branch(app, 1) },
  { keys: "v", text: TEXTS.keyActions.sideBySide, run: sideBySide },
  { keys: "w", text: TEXTS.keyActions.model, run: () => document.querySelector<HTMLElement>("main .model-choice")?.click() },
  { keys: "p", text: TEXTS.parameters, run: parameters },
  { keys: "b", text: TEXTS.logprobs, run: ({ chats }) => chats.set({ logprobs: !chats.open.value.logprobs }) },
  { keys: "s", text: TEXTS.settings, run: (app) => toggle(app.showsSettings) },
  { keys: "t", text: TEXTS.keyActions.theme, run: (app) => app.settings.nextTheme() },
  { keys: "?", text: TEXTS.keyActions.help, run: (app) => toggle(app.showsKeys) },
];

/** Keys of a part of the page, while it has the focus. */
export const ACTIONS_OF_PARTS: readonly { keys: readonly string[]; text: string }[] = [
  { keys: ["←", "→"], text: TEXTS.keyActions.tokens },
  { keys: ["←", "→", "+", "−"], text: TEXTS.keyActions.timeline },
];

/** Do what a key says. In fields keys are text, and only Escape is an action. */
export function onKey(app: App, event: KeyboardEvent): void {
  const { target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog:modal")) return; // it has the keys, wherever the focus is
  if (event.key === "Escape" && document.querySelector("[popover='auto']:popover-open")) return; // it closes
  const isField = target instanceof HTMLElement && target.matches("input, textarea, select");
  if (isField && event.key !== "Escape") return;
  const action = ACTIONS.find((one) => one.keys === event.key);
  if (!action?.run) return;
  event.preventDefault();
  action.run(app);
}

function newChat(app: App): void {
  app.go("#/");
  app.write();
}

function parameters({ showsParameters }: App): void {
  toggle(showsParameters);
  if (showsParameters.value) focusSoon(".panel > header button");
}

function toggle(flag: { value: boolean }): void {
  flag.value = !flag.value;
}

function escape(app: App): void {
  const { id } = app.chats.open.value;
  if (app.editing.value) app.editing.value = "";
  else if (app.chats.running.value.has(id)) app.chats.stop(id);
  else if (app.compare.isRunning.value) app.compare.stop();
  else if (app.showsSidebar.value && matchMedia(SIDEBAR_COVERS).matches) app.showSidebar(false);
  else if (app.showsParameters.value && app.view.value === "chat" && matchMedia(PANEL_COVERS).matches) app.showsParameters.value = false;
  else if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
}

function step(app: App, by: number): void {
  const { all, openId } = app.chats;
  const at = all.value.findIndex((conversation) => conversation.id === openId.value);
  const next = all.value[at + by];
  if (next) app.go(`#/chat/${next.id}`);
}

function edit(app: App): void {
  const last = shownTurns(app.chats.open.value).findLast((turn) => turn.role === "user");
  if (last) app.editing.value = last.id;
}

function regenerate(app: App): void {
  const last = shownTurns(app.chats.open.value).at(-1);
  if (last) app.chats.regenerate(last);
}

function goOn({ chats }: App): void {
  const last = shownTurns(chats.open.value).at(-1);
  if (last && canGoOn(last)) chats.resume(last);
}

function sideBySide({ chats }: App): void {
  const last = shownTurns(chats.open.value).findLast((turn) => turn.role === "assistant");
  if (last) chats.sideBySide.value = chats.sideBySide.value ? "" : last.parent;
}

function branch(app: App, by: number): void {
  const { value: conversation } = app.chats.open;
  const last = shownTurns(conversation).findLast(
    (turn) => alternatives(conversation, turn).length > 1,
  );
  if (!last) return;
  const all = alternatives(conversation, last);
  const next = all[all.findIndex((turn) => turn.id === last.id) + by];
  if (next) app.chats.choose(next);
}
