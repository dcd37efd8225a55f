/** The head of a view beside the chat. */

import type { ComponentChildren, JSX } from "preact";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { IconButton } from "./button.tsx";
import { Notice } from "./notice.tsx";

export function ViewHead({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <>
      <header class="head">
        <SidebarButton />
        <h1>{title}</h1>
        {children}
      </header>
      <Notice />
    </>
  );
}

/** Shows the list of conversations over a narrow screen. */
export function SidebarButton(): JSX.Element {
  const app = useApp();
  return <IconButton class="narrow-only" icon="menu" label={TEXTS.openSidebar} onClick={() => app.showSidebar(true)} />;
}
