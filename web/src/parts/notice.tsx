/** What went wrong outside of an answer. */

import type { JSX } from "preact";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { IconButton } from "./button.tsx";

export function Notice(): JSX.Element | null {
  const { error } = useApp().models;
  if (!error.value) return null;
  return (
    <div class="notice" role="alert">
      <span>{error.value}</span>
      <IconButton icon="close" label={TEXTS.dismiss} onClick={() => (error.value = "")} />
    </div>
  );
}
