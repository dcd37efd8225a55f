/** A conversation: its head, its turns, and the field for the next message. */

import type { JSX, RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { Confirm, Dialog } from "../parts/dialog.tsx";
import { Menu } from "../parts/menu.tsx";
import { ModelMenu } from "../parts/model_menu.tsx";
import { Notice } from "../parts/notice.tsx";
import { SidebarButton } from "../parts/view_head.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { Composer } from "./composer.tsx";
import { toJson, toMarkdown } from "./exchange.ts";
import { fileName, saveFile } from "./files.ts";
import { ParameterPanel } from "./parameter_panel.tsx";
import { Trials } from "./start.tsx";
import { children, countSettings, shownTurns, titleOf } from "./tree.ts";
import { TurnList } from "./turn_list.tsx";

export function ChatView(): JSX.Element {
  const app = useApp();
  const conversation = app.chats.open.value;
  const turns = shownTurns(conversation);
  const others = children(conversation);
  const isEmpty = !turns.length;
  const column = useGlide(isEmpty, conversation.id);
  return (
    <main class="chat">
      <Head />
      <Notice />
      <div class="chat-body">
        <div class={`chat-column ${isEmpty ? "is-empty" : ""}`} ref={column}>
          <TurnList turns={turns} others={others} />
          <Composer key={conversation.id} />
          {isEmpty && <Trials />}
        </div>
        {app.showsParameters.value && (
          <>
            <div class="panel-shade" onClick={() => (app.showsParameters.value = false)} />
            <ParameterPanel />
          </>
        )}
      </div>
    </main>
  );
}

const GLIDE_MS = 220;

/** Let the field for a message glide from the middle to the end when a conversation gets its first message. */
function useGlide(isEmpty: boolean, id: string): RefObject<HTMLDivElement | null> {
  const column = useRef<HTMLDivElement>(null);
  const shown = useRef({ isEmpty, id });
  const topOf = () => column.current?.querySelector(".composer")?.getBoundingClientRect().top;
  const begins = shown.current.isEmpty && !isEmpty && shown.current.id === id;
  const before = begins ? topOf() : undefined; // the document has not changed yet
  useLayoutEffect(() => {
    shown.current = { isEmpty, id };
    const now = topOf();
    if (before === undefined || now === undefined || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const frames = [{ translate: `0 ${String(before - now)}px` }, { translate: "0" }];
    column.current?.querySelector(".composer")?.animate(frames, { duration: GLIDE_MS, easing: "ease-out" });
  }, [isEmpty, id]);
  return column;
}

function Head(): JSX.Element {
  const app = useApp();
  const { chats, goneModel, model, models, showsParameters } = app;
  const { value: conversation } = chats.open;
  const settings = countSettings(conversation);
  const names = models.forChat.value.map((one) => one.name);
  return (
    <header class="head">
      <SidebarButton />
      <div class="head-title">
        <ModelMenu names={names} value={goneModel.value || model.value} onChange={(name) => app.chooseModel(name)} />
        <h1 dir="auto">{titleOf(conversation) || TEXTS.newChat}</h1>
      </div>
      {chats.openId.value !== "" && <ConversationMenu />}
      <IconButton
        icon="sliders"
        class={settings ? "is-set" : ""}
        label={TEXTS.settingsOf(settings)}
        pressed={showsParameters.value}
        onClick={() => (showsParameters.value = !showsParameters.value)}
      />
    </header>
  );
}

function ConversationMenu(): JSX.Element {
  const app = useApp();
  const { chats } = app;
  const [asked, ask] = useState<"" | "rename" | "delete">("");
  const { value: conversation } = chats.open;
  const title = titleOf(conversation);
  const close = () => ask("");
  const remove = () => {
    void chats.remove(conversation.id);
    app.go("#/");
  };
  return (
    <>
      <Menu label={TEXTS.menu}>
        <button type="button" onClick={() => ask("rename")}>{TEXTS.rename}</button>
        <button type="button" onClick={() => saveFile(fileName(title, "json"), toJson([conversation]))}>{TEXTS.exportJson}</button>
        <button type="button" onClick={() => saveFile(fileName(title, "md"), toMarkdown(conversation))}>{TEXTS.exportMarkdown}</button>
        <button type="button" class="danger" onClick={() => ask("delete")}>{TEXTS.delete}</button>
      </Menu>
      {asked === "rename" && <Rename title={title} onClose={close} />}
      {asked === "delete" && <Confirm isDangerous question={TEXTS.deleteChat(title || TEXTS.newChat)} action={TEXTS.delete} onYes={remove} onClose={close} />}
    </>
  );
}

function Rename({ title, onClose }: { title: string; onClose: () => void }): JSX.Element {
  const { chats } = useApp();
  const [text, setText] = useState(title);
  const save = (event: Event) => {
    event.preventDefault();
    if (!text.trim()) return;
    chats.set({ title: text.trim() });
    onClose();
  };
  return (
    <Dialog title={TEXTS.rename} onClose={onClose}>
      <form class="fields-below" onSubmit={save}>
        <label class="field">
          {TEXTS.title}
          <input value={text} maxLength={200} autoFocus onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <footer>
          <button type="button" onClick={onClose}>{TEXTS.cancel}</button>
          <button type="submit" class="primary" disabled={!text.trim()}>{TEXTS.save}</button>
        </footer>
      </form>
    </Dialog>
  );
}
