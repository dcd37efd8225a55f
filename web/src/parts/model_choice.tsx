/** The choice of a model. */

import type { JSX } from "preact";

import { TEXTS } from "../texts.ts";

interface Properties {
  names: string[];
  value: string;
  onChange: (name: string) => void;
  label?: string;
}

export function ModelChoice({ names, value, onChange, label }: Properties): JSX.Element {
  return (
    <select
      class="model-choice"
      aria-label={label ?? TEXTS.models}
      value={value}
      disabled={!names.length}
      onChange={(event) => onChange(event.currentTarget.value)}
    >
      {names.map((name) => <option value={name}>{name}</option>)}
    </select>
  );
}
