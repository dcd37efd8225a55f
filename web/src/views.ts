/** The views beside the chat: their addresses are `#/NAME`. */

import type { FunctionComponent } from "preact";

import type { IconName } from "./parts/icons.tsx";
import { lazy } from "./parts/lazy.tsx";
import { TEXTS } from "./texts.ts";

export interface ViewEntry {
  icon: IconName;
  title: string;
  Component: FunctionComponent;
}

export const VIEWS: Readonly<Record<string, ViewEntry>> = {
  compare: {
    icon: "columns",
    title: TEXTS.compare,
    Component: lazy(TEXTS.compare, async () => (await import("./compare/compare_view.tsx")).CompareView),
  },
  tokens: {
    icon: "tokens",
    title: TEXTS.tokenizer,
    Component: lazy(TEXTS.tokenizer, async () => (await import("./tokens/tokenizer_view.tsx")).TokenizerView),
  },
  inside: {
    icon: "pulse",
    title: TEXTS.inside,
    Component: lazy(TEXTS.inside, async () => (await import("./inside/inside_view.tsx")).default),
  },
  models: {
    icon: "box",
    title: TEXTS.models,
    Component: lazy(TEXTS.models, async () => (await import("./models/models_view.tsx")).ModelsView),
  },
};
