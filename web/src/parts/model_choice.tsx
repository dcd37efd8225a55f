/** The choice of a model. */

import type { JSX } from "preact";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";

interface Properties {
  names: string[];
  value: string;
  onChange: (name: string) => void;
  label?: string;
}

export function ModelChoice({ names, value, onChange, label }: Properties): JSX.Element {
  const { models } = useApp();
  const isKnown = models.installed.value !== null || models.error.value !== "";
  const isGone = models.isGone(value) && !names.includes(value);
  return (
    <select
      class={`model-choice ${isKnown ? "" : "unknown"}`}
      aria-label={label ?? TEXTS.models}
      value={value}
      disabled={!names.length}
      onFocus={() => void models.refresh()}
      onChange={(event) => onChange(event.currentTarget.value)}
    >
      {!names.length && <option value="">{TEXTS.noModelToChoose}</option>}
      {isGone && <option value={value} disabled>{TEXTS.goneModel(value)}</option>}
      {names.map((name) => <option value={name}>{name}</option>)}
    </select>
  );
}
