/** A button with an icon; its name is read out, and shown when the pointer rests on it. */

import type { JSX } from "preact";

import { Icon, type IconName } from "./icons.tsx";

interface Properties {
  icon: IconName;
  label: string;
  onClick: (event: MouseEvent) => void;
  class?: string;
  disabled?: boolean;
  pressed?: boolean;
}

export function IconButton(properties: Properties): JSX.Element {
  const { icon, label, onClick, disabled, pressed } = properties;
  return (
    <button
      type="button"
      class={`icon-button ${properties.class ?? ""}`}
      aria-label={label}
      title={label}
      disabled={disabled ?? false}
      aria-pressed={pressed}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}
