/** Everything that the page knows; made once, and handed to the views by a context. */

import { computed, signal } from "@preact/signals";
import { createContext } from "preact";
import { useContext } from "preact/hooks";

import { Http } from "../api/http.ts";
import { Server } from "../api/server.ts";
import { optionsProblem } from "../chat/options.ts";
import { ConversationStore } from "../chat/store.ts";
import { titleOf } from "../chat/tree.ts";
import { type Trial, drawnPicture } from "../chat/trials.ts";
import { Chats } from "./chats.ts";
import { Compare } from "./compare.ts";
import { chooseFile, focusSoon } from "../parts/focus.ts";
import { Drafts } from "./drafts.ts";
import { SIDEBAR_COVERS } from "./back.ts";
import { FormatCheck } from "./format_check.ts";
import { Models } from "./models.ts";
import { Settings } from "./settings.ts";
import { TEXTS } from "../texts.ts";
import { VIEWS, type ViewName, viewOf } from "../views.ts";

export class App {
  readonly settings: Settings;
  readonly server: Server;
  readonly models: Models;
  readonly chats: Chats;
  readonly formatCheck: FormatCheck;
  readonly compare: Compare;
  /** The view that is shown. */
  readonly view = signal<ViewName>("chat");
  readonly showsKeys = signal(false);
  readonly showsSettings = signal(false);
  readonly showsParameters = signal(false);
  /** Whether the list of conversations covers a narrow screen. */
  readonly showsSidebar = signal(false);
  /** What the conversations are searched for. */
  readonly words = signal("");
  /** How many conversations were imported last, how many were here already, and why files could not be. */
  readonly imported = signal<{ count: number; known: number; errors: string[] }>({ count: 0, known: 0, errors: [] });
  readonly drafts = new Drafts(sessionStorage);
  /** The id of the message that is being edited. */
  readonly editing = signal("");
  /** The model of the open conversation; if it has none, or that is gone, the last used one, else any. */
  readonly model = computed(() => {
    const names = this.models.usual.value;
    const { model } = this.chats.open.value;
    return [model, this.settings.model].find((name) => names.includes(name)) ?? names[0] ?? model;
  });

  /** The model of the open conversation if the server no longer has it, else empty. Another model answers only once the user chooses it. */
  readonly goneModel = computed(() => {
    const { model } = this.chats.open.value;
    return this.models.isGone(model) ? model : "";
  });

  /** Of the browser's tab. */
  readonly title = computed(() => {
    const { value: view } = this.view;
    const title = view === "chat" ? titleOf(this.chats.open.value) : VIEWS[view].title;
    return title ? TEXTS.tab(title) : TEXTS.brand;
  });

  /** Why nothing can be sent to the chosen model; empty: something can. */
  readonly problem = computed(() => {
    const gone = this.goneModel.value;
    if (gone) return this.models.usual.value.length ? TEXTS.modelGone(gone) : TEXTS.noModel;
    const wrong = this.formatCheck.problem.value;
    if (wrong) return TEXTS.cannotSend(wrong);
    const option = optionsProblem(this.models.parameters.value, this.chats.open.value.options);
    if (option) return option;
    const model = this.models.find(this.model.value);
    const hasTools = this.chats.open.value.tools.trim() !== "";
    return model && hasTools && !model.capabilities.includes("tools") ? TEXTS.noTools(model.name) : "";
  });

  /** Whether the answers of the open conversation are shown as tokens, where they have them. */
  readonly showsTokens = computed(() => this.chats.open.value.logprobs);

  constructor(store: ConversationStore) {
    this.settings = new Settings(localStorage);
    this.server = new Server(new Http(this.settings));
    this.models = new Models(this.server, this.settings);
    this.compare = new Compare(this.server, this.models);
    this.chats = new Chats(this.server, this.models, this.settings, store);
    this.formatCheck = new FormatCheck(this.server, this.chats.open, this.model);
  }

  /** Follow the address after the `#`: a view, `#/chat/ID`, or a new conversation. */
  follow(hash: string): void {
    const [, view = "", id = ""] = hash.split("/");
    this.view.value = viewOf(view);
    this.showsSidebar.value = false;
    this.imported.value = { count: 0, known: 0, errors: [] };
    if (this.view.value === "chat" && id !== this.chats.openId.value) {
      if (id && this.chats.find(id)) this.chats.openId.value = id;
      else this.chats.begin();
    }
  }

  /**
   * Go to an address at once: the browser tells of a new one only after the keys that were pressed
   * meanwhile, which would go to what was shown before.
   */
  go(hash: string): void {
    location.hash = hash;
    this.follow(hash);
  }

  /** Show or hide the list of conversations: over a narrow screen; on a wide one its icons stay. */
  showSidebar(isShown: boolean): void {
    if (!matchMedia(SIDEBAR_COVERS).matches) {
      this.settings.collapse(!isShown);
      return;
    }
    this.showsSidebar.value = isShown;
    focusSoon(isShown ? ".sidebar-toggle" : "main .narrow-only");
  }

  toggleSidebar(): void {
    this.showSidebar(matchMedia(SIDEBAR_COVERS).matches ? !this.showsSidebar.value : this.settings.isCollapsed.value);
  }

  /** Search the models where they are shown, else the conversations. */
  search(): void {
    const isOfModels = this.view.value === "models";
    if (!isOfModels) this.showSidebar(true);
    focusSoon(isOfModels ? "#search-models" : "#search");
  }

  /** Put the focus into the field for a message. */
  write(): void {
    if (matchMedia("(pointer: coarse)").matches) return; // a keyboard would cover the screen
    focusSoon("#message");
  }

  chooseModel(name: string): void {
    this.settings.model = name;
    this.chats.set({ model: name });
  }

  /** Let another model answer in the open conversation, whose own is gone. */
  goOnWith(name: string): void {
    this.chooseModel(name);
    this.write();
  }

  /** Begin a conversation with a model. */
  chatWith(name: string): void {
    this.chats.begin();
    this.chooseModel(name);
    this.go("#/");
    this.write();
  }

  /** Begin a conversation with something that its model can do. */
  try({ message, hasPicture = false, needsFile = false, settings }: Trial): void {
    if (needsFile) {
      chooseFile();
      return;
    }
    if (settings) this.chats.set(settings);
    this.send(message, hasPicture ? [drawnPicture()] : []);
  }

  /** Send a message to the chosen model. */
  send(content: string, images: string[]): void {
    this.chooseModel(this.model.value);
    this.chats.send(content, images);
    history.replaceState(null, "", `#/chat/${this.chats.openId.value}`);
  }
}

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  const app = useContext(AppContext);
  // eslint-disable-next-line no-restricted-syntax -- for programmers
  if (!app) throw new Error("useApp must be called inside AppContext.Provider");
  return app;
}
