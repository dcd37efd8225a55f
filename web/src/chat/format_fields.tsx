/** The output format and the tools of the open conversation; what is wrong with them is said at once. */

import type { JSX } from "preact";
import { useEffect, useId, useState } from "preact/hooks";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { type Format, problemOf, requestFormat, requestTools } from "./formats.ts";

const WAIT_MS = 250; // for more typing

export function FormatFields(): JSX.Element {
  const { chats } = useApp();
  const { format, tools } = chats.open.value;
  const { kind, text } = format;
  const [hasFormat] = useState(kind !== "none"); // what is open stays open
  const [hasTools] = useState(tools !== "");
  const problem = problemOf(() => requestFormat(format));
  const refusal = useRefusal(format, problem === "");
  return (
    <>
      <details open={hasFormat}>
        <summary>{TEXTS.format}</summary>
        <label class="field option">
          {TEXTS.formatKind}
          <select
            value={kind}
            onChange={(event) => chats.set({ format: { kind: event.currentTarget.value as Format["kind"], text } })}
          >
            {Object.entries(TEXTS.formats).map(([name, title]) => <option value={name}>{title}</option>)}
          </select>
        </label>
        {kind !== "none" && kind !== "json" && (
          <Source
            label={TEXTS.formats[kind]}
            hint={TEXTS.formatHints[kind]}
            value={text}
            problem={problem || refusal}
            onInput={(value) => chats.set({ format: { kind, text: value } })}
          />
        )}
      </details>
      <details open={hasTools}>
        <summary>{TEXTS.tools}</summary>
        <Source
          label={TEXTS.toolsLabel}
          hint={TEXTS.toolsHint}
          value={tools}
          problem={problemOf(() => requestTools(tools))}
          onInput={(value) => chats.set({ tools: value })}
        />
      </details>
    </>
  );
}

/** Return why the server refuses a format that is being typed; empty: it does not, or was not asked yet. */
function useRefusal(format: Format, isComplete: boolean): string {
  const { server, model } = useApp();
  const [refusal, setRefusal] = useState("");
  const { kind, text } = format;
  const name = model.value;
  useEffect(() => setRefusal(""), [kind]);
  useEffect(() => {
    if (!isComplete || !name || kind === "none" || kind === "json") return;
    const abort = new AbortController();
    const ask = async () => {
      try {
        setRefusal(await server.checkFormat(name, requestFormat(format), abort.signal));
      } catch {
        if (!abort.signal.aborted) setRefusal(""); // a message that is sent will tell it
      }
    };
    const timer = setTimeout(() => void ask(), WAIT_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [kind, text, name, isComplete]);
  return refusal;
}

interface Properties {
  label: string;
  hint: string;
  value: string;
  problem: string;
  onInput: (value: string) => void;
}

function Source({ label, hint, value, problem, onInput }: Properties): JSX.Element {
  const id = useId();
  return (
    <div class="field option">
      <label for={id}>{label}</label>
      <textarea
        id={id}
        class="source"
        rows={6}
        spellcheck={false}
        placeholder={hint}
        value={value}
        aria-invalid={problem !== "" && value !== ""}
        aria-describedby={`${id}-problem`}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      <p id={`${id}-problem`} class="error" role="status">{value && problem}</p>
    </div>
  );
}
