/** The name of a new model; the server says while it is typed whether a model may have it. */

import type { JSX } from "preact";
import { useEffect, useId, useState } from "preact/hooks";

import { sentence } from "../api/sentence.ts";
import type { NameCheck } from "../api/server.ts";
import { Told } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";

const WAIT_MS = 150; // for more typing

interface Checked {
  name: string;
  check: NameCheck | null;
}

/** Return what the server says about a name; null: nothing yet, or it cannot be asked, which sending it will tell. */
export function useNameCheck(name: string): NameCheck | null {
  const { server } = useApp();
  const [checked, setChecked] = useState<Checked>({ name: "", check: null });
  useEffect(() => {
    if (!name) return;
    const abort = new AbortController();
    const put = (check: NameCheck | null) => {
      if (!abort.signal.aborted) setChecked({ name, check });
    };
    const timer = setTimeout(() => void server.checkName(name, abort.signal).then(put, () => put(null)), WAIT_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [name]);
  return checked.name === name ? checked.check : null;
}

interface Properties {
  value: string;
  check: NameCheck | null;
  onInput: (name: string) => void;
}

export function NameField({ value, check, onInput }: Properties): JSX.Element {
  const id = useId();
  const problem = sentence(check?.error ?? "");
  const note = check?.exists ? (check.origin === "store" ? TEXTS.nameExists : TEXTS.nameHides(check.origin ?? "")) : "";
  return (
    <div class="field">
      <label for={id}>{TEXTS.modelName}</label>
      <input
        id={id}
        value={value}
        autoComplete="off"
        autoCapitalize="off"
        spellcheck={false}
        aria-invalid={problem !== ""}
        aria-describedby={`${id}-note`}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      <p id={`${id}-note`} class={problem ? "error" : "hint"} role="status"><Told text={problem || note} /></p>
    </div>
  );
}
