/** What the server says, with its code as code; and what went wrong, which is read out. */

import type { ComponentChildren, JSX } from "preact";

import { backticks } from "./backticks.ts";

export function Told({ text }: { text: string }): JSX.Element {
  return <>{backticks(text).map((part): ComponentChildren => (part.isCode ? <code dir="ltr">{part.text}</code> : part.text))}</>;
}

export function ErrorText({ text, id }: { text: string; id?: string }): JSX.Element {
  return <p class="error" role="alert" id={id}><Told text={text} /></p>;
}
