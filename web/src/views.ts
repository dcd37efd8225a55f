/** The views beside the chat: their addresses are `#/NAME`. */

import type { IconName } from "./parts/icons.tsx";
import { TEXTS } from "./texts.ts";

export const VIEWS = {
  compare: { icon: "columns", title: TEXTS.compare },
  tokens: { icon: "tokens", title: TEXTS.tokenizer },
  inside: { icon: "pulse", title: TEXTS.inside },
  models: { icon: "box", title: TEXTS.models },
} as const satisfies Readonly<Record<string, { icon: IconName; title: string }>>;

export type ViewName = "chat" | keyof typeof VIEWS;

/** Return the view of a name in an address; any other name is the chat's. */
export function viewOf(name: string): ViewName {
  return Object.hasOwn(VIEWS, name) ? (name as ViewName) : "chat";
}
