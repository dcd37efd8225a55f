/** What a button shows over the page: nothing that is there already moves. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { keepUnder } from "./under.ts";

interface Properties {
  /** What the button and what it shows are called. */
  label: string;
  /** What the button has: an icon, or a text. */
  face: ComponentChildren;
  /** Of the button. */
  class: string;
  title?: string;
  disabled?: boolean;
  onOpen?: () => void;
  /** What is shown, made when it is; `close` closes it, and the button has the focus again. */
  children: (close: () => void) => ComponentChildren;
}

/** It closes on Escape, and when something else is clicked. */
export function Popover({ label, face, title, disabled = false, onOpen, children, ...given }: Properties): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const place = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => {
    if (isOpen && place.current && button.current) return keepUnder(place.current, button.current);
  }, [isOpen]);
  const close = () => {
    place.current?.hidePopover();
    button.current?.focus();
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        class={given.class}
        aria-label={label}
        aria-haspopup="dialog"
        aria-expanded={isOpen}
        title={title}
        disabled={disabled}
        popoverTarget={id}
      >
        {face}
      </button>
      <div
        ref={place}
        id={id}
        popover="auto"
        class="popover"
        role="dialog"
        aria-label={label}
        onBeforeToggle={({ newState }) => {
          setOpen(newState === "open");
          if (newState === "open") onOpen?.();
        }}
        onToggle={({ newState }) => newState === "open" && place.current?.querySelector<HTMLElement>("[autofocus]")?.focus()}
      >
        {isOpen && children(close)}
      </div>
    </>
  );
}
