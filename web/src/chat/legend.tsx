/** What the colours of tokens say. */

import type { JSX } from "preact";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";

export function Legend(): JSX.Element {
  const { title, steps } = TEXTS.legends[useApp().settings.colour.value];
  return (
    <p class="token-legend">
      {title}
      <span class="steps">{steps.map((step, at) => <span class={`step doubt-${String(at)}`}>{step}</span>)}</span>
    </p>
  );
}
