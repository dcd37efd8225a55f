/** The order in which models are listed. */

import { useState } from "preact/hooks";

import type { Model } from "../api/server.ts";
import { useApp } from "../state/app.ts";

/** Return first those that were in memory when the list was first shown: none moves because it is loaded. */
export function useInMemoryFirst(models: readonly Model[]): Model[] {
  const { loaded } = useApp().models;
  const [first] = useState(() => new Set(loaded.value.map((one) => one.name)));
  return models.toSorted((one, other) => Number(first.has(other.name)) - Number(first.has(one.name)));
}
