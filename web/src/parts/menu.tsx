/** A menu behind a button with three dots. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { Icon } from "./icons.tsx";

interface Properties {
  /** Where it opens: below the button, or above it. */
  class?: "up";
  label: string;
  /** Buttons. */
  children: ComponentChildren;
}

/** It closes after a choice, on Escape, and when something else is clicked or gets the focus. */
export function Menu(properties: Properties): JSX.Element {
  const place = useRef<HTMLDetailsElement>(null);
  const close = () => place.current?.removeAttribute("open");
  const closeUnless = (target: EventTarget | null) => {
    if (!(target instanceof Node && place.current?.contains(target))) close();
  };
  useEffect(() => {
    const onDown = ({ target }: Event) => closeUnless(target);
    document.addEventListener("pointerdown", onDown);
    return () => document.removeEventListener("pointerdown", onDown);
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !place.current?.open) return;
    event.stopPropagation();
    close();
    place.current.querySelector("summary")?.focus();
  };
  return (
    <details
      ref={place}
      class="menu"
      onClick={({ target }) => target instanceof HTMLButtonElement && close()}
      onFocusOut={({ relatedTarget }) => relatedTarget && closeUnless(relatedTarget)}
      onKeyDown={onKeyDown}
    >
      <summary class="icon-button" aria-label={properties.label} title={properties.label}><Icon name="more" /></summary>
      <div class={`menu-items ${properties.class ?? ""}`}>{properties.children}</div>
    </details>
  );
}
