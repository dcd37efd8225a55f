/** A field that searches a list. */

import type { JSX } from "preact";

import { Icon } from "./icons.tsx";

interface Properties {
  id: string;
  label: string;
  value: string;
  onInput: (words: string) => void;
}

export function SearchField({ id, label, value, onInput }: Properties): JSX.Element {
  return (
    <label class="search">
      <Icon name="search" />
      <input
        id={id}
        type="search"
        placeholder={label}
        aria-label={label}
        autoComplete="off"
        value={value}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    </label>
  );
}
