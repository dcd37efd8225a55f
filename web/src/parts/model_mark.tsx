/** A model's mark: the initial of its name in a round, in the colour of its family. */

import type { JSX } from "preact";

import { useApp } from "../state/app.ts";
import { hueOf, initialOf } from "./model_facts.ts";

/** It is not part of the text beside it. A model that is not installed any more has no colour. */
export function ModelMark({ name }: { name: string }): JSX.Element {
  const { models } = useApp();
  const hue = hueOf(models.find(name)?.details.family ?? "");
  return <span class={`model-mark ${hue === null ? "" : `mark-${String(hue)}`}`} data-initial={initialOf(name)} aria-hidden="true" />;
}
