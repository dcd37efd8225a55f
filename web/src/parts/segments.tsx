/** One of a few choices, all of which are seen. */

import type { JSX } from "preact";
import { useId } from "preact/hooks";

interface Properties<T extends string | number> {
  label: string;
  /** The values with their texts. */
  choices: readonly [T, string][];
  value: T;
  disabled?: boolean;
  onChange: (value: T) => void;
}

export function Segments<T extends string | number>({ label, choices, value, disabled = false, onChange }: Properties<T>): JSX.Element {
  const name = useId();
  return (
    <fieldset class="segments" disabled={disabled}>
      <legend>{label}</legend>
      <div>
        {choices.map(([choice, text]) => (
          <label key={choice}>
            <input type="radio" name={name} checked={choice === value} onChange={() => onChange(choice)} />
            <span>{text}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}
