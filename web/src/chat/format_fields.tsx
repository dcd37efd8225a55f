/** The output format and the tools of the open conversation; what is wrong with them is said at once. */

import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";

import { sentence } from "../api/sentence.ts";
import { Told } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import type { Format } from "./formats.ts";

export function FormatFields(): JSX.Element {
  const { chats, formatCheck } = useApp();
  const { format, tools } = chats.open.value;
  const { kind, text } = format;
  const [hasFormat] = useState(kind !== "none"); // what is open stays open
  const [hasTools] = useState(tools !== "");
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
            problem={formatCheck.formatProblem.value}
            warnings={formatCheck.formatWarnings.value}
            isChecking={formatCheck.isChecking.value}
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
          problem={formatCheck.toolsProblem.value}
          onInput={(value) => chats.set({ tools: value })}
        />
      </details>
    </>
  );
}

interface Properties {
  label: string;
  hint: string;
  value: string;
  problem: string;
  warnings?: string[];
  isChecking?: boolean;
  onInput: (value: string) => void;
}

function Source(properties: Properties): JSX.Element {
  const { label, hint, value, problem, warnings = [], isChecking = false, onInput } = properties;
  const id = useId();
  const told = problem ? [problem] : warnings;
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
      <p id={`${id}-problem`} class={isChecking || !problem ? "hint" : "error"} role="status">
        {value && (isChecking ? TEXTS.checking : <Told text={told.map(sentence).join(". ")} />)}
      </p>
    </div>
  );
}
