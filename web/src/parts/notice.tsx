/** That the models are not known, or may have changed: the server cannot be reached, or asks for a key. */

import type { JSX } from "preact";

import { useApp } from "../state/app.ts";
import { Told } from "./told.tsx";

/** Shown among the models, and elsewhere where none is known: answers say themselves what went wrong. */
export function Notice(): JSX.Element | null {
  const { models, view } = useApp();
  const isNeeded = view.value === "models" || models.installed.value === null;
  if (!models.error.value || !isNeeded) return null;
  return <p class="notice" role="alert"><Told text={models.error.value} /></p>;
}
