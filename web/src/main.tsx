/** Starts the page. */

import { effect } from "@preact/signals";
import { render } from "preact";

import { hasFiles } from "./chat/files.ts";
import { ConversationStore } from "./chat/store.ts";
import { onKey } from "./keys.ts";
import { Page } from "./page.tsx";
import { App, AppContext } from "./state/app.ts";
import { Back, PANEL_COVERS, SIDEBAR_COVERS } from "./state/back.ts";
import "./style/base.css";
import "./style/layout.css";
import "./style/chat.css";
import "./style/markdown.css";
import "./style/marks.css";
import "./style/models.css";
import "./style/parts.css";
import "./style/start.css";
import "./style/tokens.css";
import "./style/extras.css";

const app = new App(await ConversationStore.open());
await app.chats.read();
app.follow(location.hash);
addEventListener("hashchange", () => app.follow(location.hash));
addEventListener("keydown", (event) => onKey(app, event));
addEventListener("pagehide", () => {
  app.chats.flush();
  app.models.keepPulls();
});
const back = new Back();
back.closes("parameters", app.showsParameters, PANEL_COVERS);
back.closes("conversations", app.showsSidebar, SIDEBAR_COVERS);
void app.models.refresh();
for (const type of ["dragover", "drop"] as const) {
  // Else the browser would open a file in the place of the page. A field for files takes them.
  addEventListener(type, (event) => {
    const isField = event.target instanceof HTMLInputElement && event.target.type === "file";
    if (hasFiles(event) && !isField) event.preventDefault();
  });
}
addEventListener("focus", () => void app.models.refresh()); // others may have pulled or loaded one
effect(() => {
  document.title = app.title.value;
});
const place = document.getElementById("app");
if (place) render(<AppContext.Provider value={app}><Page /></AppContext.Provider>, place);
