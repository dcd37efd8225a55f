/** The whole page: the list of conversations, the view beside it, and the dialogs over them. */

import type { FunctionComponent, JSX } from "preact";

import { ChatView } from "./chat/chat_view.tsx";
import { Sidebar } from "./chat/sidebar.tsx";
import { KeyDialog, KeysDialog, SettingsDialog } from "./dialogs.tsx";
import { lazy } from "./parts/lazy.tsx";
import { useApp } from "./state/app.ts";
import { VIEWS, type ViewName } from "./views.ts";

const COMPONENTS: Readonly<Record<ViewName, FunctionComponent>> = {
  chat: ChatView,
  compare: lazy(VIEWS.compare.title, async () => (await import("./compare/compare_view.tsx")).CompareView),
  tokens: lazy(VIEWS.tokens.title, async () => (await import("./tokens/tokenizer_view.tsx")).TokenizerView),
  inside: lazy(VIEWS.inside.title, async () => (await import("./inside/inside_view.tsx")).default),
  models: lazy(VIEWS.models.title, async () => (await import("./models/models_view.tsx")).ModelsView),
};

export function Page(): JSX.Element {
  const app = useApp();
  const { settings, view, showsKeys, showsSettings, showsSidebar } = app;
  const View = COMPONENTS[view.value];
  return (
    <div class={`page ${showsSidebar.value ? "with-sidebar" : ""} ${settings.isCollapsed.value ? "is-collapsed" : ""}`}>
      <Sidebar />
      <div class="shade" onClick={() => (showsSidebar.value = false)} />
      <View />
      {showsKeys.value && <KeysDialog onClose={() => (showsKeys.value = false)} />}
      {showsSettings.value && <SettingsDialog onClose={() => (showsSettings.value = false)} />}
      {settings.asksForKey.value && <KeyDialog />}
    </div>
  );
}
