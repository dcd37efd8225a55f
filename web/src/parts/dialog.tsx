/** A dialog over the page; Escape and a click beside it close it, and the focus goes back. */

import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useId, useRef } from "preact/hooks";

import { TEXTS } from "../texts.ts";
import { IconButton } from "./button.tsx";

interface Properties {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: Properties): JSX.Element {
  const place = useRef<HTMLDialogElement>(null);
  const name = useId();
  useLayoutEffect(() => place.current?.showModal(), []);
  return (
    <dialog
      ref={place}
      aria-labelledby={name}
      onClose={onClose}
      onClick={(event) => event.target === event.currentTarget && event.currentTarget.close()}
    >
      <div class="dialog">
        <header>
          <h2 id={name}>{title}</h2>
          <IconButton icon="close" label={TEXTS.close} onClick={() => place.current?.close()} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface Question {
  question: string;
  action: string;
  /** The action, if there is none. */
  title?: string;
  /** What cannot be undone looks so. */
  isDangerous?: boolean;
  onYes: () => void;
  onClose: () => void;
}

export function Confirm({ question, action, title = action, isDangerous = false, onYes, onClose }: Question): JSX.Element {
  const yes = () => {
    onClose();
    onYes();
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{question}</p>
      <footer>
        <button type="button" onClick={onClose} autoFocus>{TEXTS.cancel}</button>
        <button type="button" class={isDangerous ? "danger" : "primary"} onClick={yes}>{action}</button>
      </footer>
    </Dialog>
  );
}
