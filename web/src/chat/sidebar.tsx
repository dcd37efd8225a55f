/** The list of conversations, with their search, and the ways to the other views. */

import type { ComponentChildren, JSX, TargetedMouseEvent } from "preact";
import { useId, useRef } from "preact/hooks";

import { messageOf } from "../api/http.ts";
import { Icon, Sign } from "../parts/icons.tsx";
import { IconButton } from "../parts/button.tsx";
import { Menu } from "../parts/menu.tsx";
import { SearchField } from "../parts/search_field.tsx";
import { ErrorText } from "../parts/told.tsx";
import { useToday } from "../parts/use_today.ts";
import { type App, useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { moment } from "../units.ts";
import { VIEWS } from "../views.ts";
import { fromJson, fromMarkdown, toJson, withoutKnown } from "./exchange.ts";
import { saveFile } from "./files.ts";
import { type Group, groupsOf } from "./groups.ts";
import { newId } from "./ids.ts";
import { type Conversation, matches, titleOf } from "./tree.ts";

export function Sidebar(): JSX.Element {
  const app = useApp();
  const { chats, imported, settings, showsSettings, showsKeys, showsSidebar, view, words } = app;
  const { value: isCollapsed } = settings.isCollapsed;
  const titled = (text: string) => (isCollapsed ? text : undefined); // where its text is not shown
  const { count, known } = imported.value;
  const told = [count > 0 && TEXTS.imported(count), known > 0 && TEXTS.known(known)].filter(Boolean);
  const found = chats.all.value.filter((conversation) => matches(conversation, words.value));
  const entries = found.map((one) => ({ conversation: one, title: titleOf(one) || TEXTS.newChat, updated: one.updated }));
  const counts = new Map<string, number>();
  for (const { title } of entries) counts.set(title, (counts.get(title) ?? 0) + 1);
  const groups = groupsOf(entries, useToday(), navigator.language);
  const empty = chats.all.value.length ? TEXTS.noMatch : TEXTS.noChats;
  return (
    <nav class="sidebar" aria-label={TEXTS.chats}>
      <header>
        <span class="brand"><Sign />{TEXTS.brand}</span>
        <IconButton
          class="sidebar-toggle"
          icon="sidebar"
          label={isCollapsed && !showsSidebar.value ? TEXTS.openSidebar : TEXTS.closeSidebar}
          onClick={() => app.toggleSidebar()}
        />
      </header>
      <a class="button primary" href="#/" title={titled(TEXTS.newChat)} onClick={(event) => open(app, event)}>
        <Icon name="plus" /> <span class="label">{TEXTS.newChat}</span>
      </a>
      <IconButton class="collapsed-only" icon="search" label={TEXTS.search} onClick={() => app.search()} />
      <SearchField id="search" label={TEXTS.search} value={words.value} onInput={(typed) => (words.value = typed)} />
      <div class="conversations">
        {groups.map((group) => (
          <GroupList key={group.title} group={group}>
            {group.members.map(({ conversation, title }) => (
              <Entry
                key={conversation.id}
                conversation={conversation}
                isOpen={view.value === "chat" && conversation.id === chats.openId.value}
                title={title}
                hasTime={(counts.get(title) ?? 0) > 1}
              />
            ))}
          </GroupList>
        ))}
      </div>
      {!found.length && <p class="hint">{empty}</p>}
      <div class="views">
        {Object.entries(VIEWS).map(([name, { icon, title }]) => (
          <a class="button" href={`#/${name}`} title={titled(title)} aria-current={view.value === name ? "page" : undefined}>
            <Icon name={icon} /> <span class="label">{title}</span>
          </a>
        ))}
      </div>
      {imported.value.errors.map((error) => <ErrorText text={error} />)}
      <p class="hint" role="status">{told.join(" ")}</p>
      <footer>
        <span class="grow" />
        <Exchange />
        <IconButton icon="gear" label={TEXTS.settings} onClick={() => (showsSettings.value = true)} />
        <button type="button" class="icon-button" aria-label={TEXTS.keys} title={TEXTS.keys} onClick={() => (showsKeys.value = true)}>?</button>
      </footer>
    </nav>
  );
}

/** The conversations of a day, of several, or of a month. */
function GroupList({ group, children }: { group: Group<unknown>; children: ComponentChildren }): JSX.Element {
  const id = useId();
  return (
    <section>
      <h2 id={id} lang={group.language}>{group.title}</h2>
      <ul aria-labelledby={id}>{children}</ul>
    </section>
  );
}

interface Properties {
  conversation: Conversation;
  title: string;
  isOpen: boolean;
  /** Whether its time is shown, because others have the same title. */
  hasTime: boolean;
}

function Entry({ conversation, title, isOpen, hasTime }: Properties): JSX.Element {
  const app = useApp();
  const { chats } = app;
  const isRunning = chats.running.value.has(conversation.id);
  return (
    <li>
      <a href={`#/chat/${conversation.id}`} aria-current={isOpen ? "page" : undefined} dir="auto" onClick={(event) => open(app, event)}>
        {isRunning && <span class="dot" aria-label={TEXTS.waiting} />}
        <span class="entry-title">{title}</span>
        {hasTime && <time dateTime={new Date(conversation.created).toISOString()}>{moment(conversation.created)}</time>}
      </a>
    </li>
  );
}

/** Follow a link to a conversation at once, and let a message be written there. */
function open(app: App, event: TargetedMouseEvent<HTMLAnchorElement>): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in another tab
  event.preventDefault();
  app.go(event.currentTarget.hash);
  app.write();
}

/** Exports all conversations, and imports those of files. */
function Exchange(): JSX.Element {
  const app = useApp();
  const { chats, imported } = app;
  const input = useRef<HTMLInputElement>(null);
  const read = async (files: FileList | null) => {
    const read: Conversation[] = [];
    const errors: string[] = [];
    for (const file of files ?? []) {
      const text = await file.text();
      const isMarkdown = /\.(md|markdown)$/i.test(file.name);
      try {
        read.push(...(isMarkdown ? [fromMarkdown(text, newId, Date.now())] : fromJson(text, newId)));
      } catch (error) {
        errors.push(`${file.name}: ${messageOf(error)}`);
      }
    }
    const added = withoutKnown(read, chats.all.value);
    chats.add(added);
    imported.value = { count: added.length, known: read.length - added.length, errors };
    if (input.current) input.current.value = "";
    app.showSidebar(true); // it tells what was imported
  };
  return (
    <>
      <Menu class="up" label={TEXTS.allChats}>
        <button type="button" onClick={() => saveFile("conversations.json", toJson(chats.all.value))}>{TEXTS.exportAll}</button>
        <button type="button" onClick={() => input.current?.click()}>{TEXTS.import}</button>
      </Menu>
      <input
        ref={input}
        type="file"
        hidden
        multiple
        accept=".json,.md"
        aria-label={TEXTS.import}
        onChange={(event) => void read(event.currentTarget.files)}
      />
    </>
  );
}
