/** The whole page: the list of conversations, the view beside it, and the dialogs over them. */

import type { JSX } from "preact";

import { ChatView } from "./chat/chat_view.tsx";
import { Sidebar } from "./chat/sidebar.tsx";
import { KeyDialog, KeysDialog, SettingsDialog } from "./dialogs.tsx";
import { useApp } from "./state/app.ts";
import { VIEWS } from "./views.ts";

export function Page(): JSX.Element {
  const app = useApp();
  const { settings, view, showsKeys, showsSettings, showsSidebar } = app;
  const View = VIEWS[view.value]?.Component ?? ChatView;
  return (
    <div class={`page ${showsSidebar.value ? "with-sidebar" : ""}`}>
      <Sidebar />
      <div class="shade" onClick={() => (showsSidebar.value = false)} />
      <View />
      {showsKeys.value && <KeysDialog onClose={() => (showsKeys.value = false)} />}
      {showsSettings.value && <SettingsDialog onClose={() => (showsSettings.value = false)} />}
      {settings.asksForKey.value && <KeyDialog />}
    </div>
  );
}
