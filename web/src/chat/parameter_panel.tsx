/** The system prompt and the parameters of the open conversation, from the server's table. */

import type { ComponentChildren, JSX } from "preact";
import { useId, useState } from "preact/hooks";

import type { Parameter, Value } from "../api/server.ts";
import { IconButton } from "../parts/button.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { FormatFields } from "./format_fields.tsx";
import { numberIn, optionProblem } from "./options.ts";
import { NO_SETTINGS, countSettings } from "./tree.ts";

export function ParameterPanel(): JSX.Element {
  const { chats, showsParameters } = useApp();
  const { value: conversation } = chats.open;
  const { system, options } = conversation;
  return (
    <aside class="panel" aria-label={TEXTS.parameters}>
      <header>
        <h2>{TEXTS.parameters}</h2>
        <IconButton icon="close" label={TEXTS.close} onClick={() => (showsParameters.value = false)} />
      </header>
      <SystemField value={system} onChange={(text) => chats.set({ system: text })} />
      <FormatFields />
      <OptionFields options={options} onChange={(changed) => chats.set({ options: changed })} />
      <footer>
        <button type="button" disabled={!countSettings(conversation)} onClick={() => chats.set(NO_SETTINGS)}>{TEXTS.reset}</button>
      </footer>
    </aside>
  );
}

export function SystemField({ value, onChange }: { value: string; onChange: (text: string) => void }): JSX.Element {
  return (
    <label class="field">
      {TEXTS.system}
      <textarea
        rows={4}
        dir="auto"
        placeholder={TEXTS.systemHint}
        value={value}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </label>
  );
}

interface Options {
  options: Record<string, Value>;
  onChange: (options: Record<string, Value>) => void;
}

/** A field for each parameter of the server's table. */
export function OptionFields({ options, onChange }: Options): JSX.Element {
  const { models } = useApp();
  const set = (name: string, value: Value | null) => {
    const { [name]: _, ...others } = options;
    onChange(value === null ? others : { ...others, [name]: value });
  };
  return (
    <>
      {Object.entries(TEXTS.uses).map(([use, title]) => (
        <details open={use !== "loading"}>
          <summary>{title}</summary>
          {models.parameters.value.filter((one) => one.use === use).map((parameter) => (
            <Field key={parameter.name} parameter={parameter} value={options[parameter.name]} onChange={(value) => set(parameter.name, value)} />
          ))}
        </details>
      ))}
    </>
  );
}

interface Properties {
  parameter: Parameter;
  value: Value | undefined;
  onChange: (value: Value | null) => void;
}

function Field({ parameter, value, onChange }: Properties): JSX.Element {
  const { name, doc, range } = parameter;
  const problem = optionProblem(parameter, value);
  const id = useId();
  return (
    <label class={`field option ${value === undefined ? "" : "is-set"}`} title={`${doc.replaceAll("`", "")} (${range})`}>
      <span><code>{name}</code></span>
      <Input parameter={parameter} value={value} problemId={problem && id} onChange={onChange} />
      {problem ? <small id={id} class="error">{problem}</small> : <small>{withCode(doc)}</small>}
    </label>
  );
}

/** Return a text whose parts between backticks are code. */
function withCode(text: string): ComponentChildren[] {
  return text.split("`").map((part, at) => (at % 2 ? <code>{part}</code> : part));
}

/** What is typed stays while answers come and other things change, until the field is left. */
function useTyped(shown: string, leave: (text: string) => void) {
  const [typed, setTyped] = useState<string | null>(null);
  return {
    value: typed ?? shown,
    onInput: ({ currentTarget }: { currentTarget: { value: string } }) => setTyped(currentTarget.value),
    onChange: ({ currentTarget }: { currentTarget: { value: string } }) => {
      setTyped(null);
      leave(currentTarget.value);
    },
  };
}

function Input({ parameter, value, problemId, onChange }: Properties & { problemId: string }): JSX.Element {
  const { type } = parameter;
  const usual = parameter.default === null ? "" : String(parameter.default);
  const field = useTyped(textOf(value), (text) => onChange(readValue(type, text)));
  if (type === "bool") {
    const shown = value === undefined ? "" : String(value);
    return (
      <select value={shown} onChange={({ currentTarget: { value: text } }) => onChange(text ? text === "true" : null)}>
        <option value="">{TEXTS.modelDefault}</option>
        <option value="true">{TEXTS.yes}</option>
        <option value="false">{TEXTS.no}</option>
      </select>
    );
  }
  if (type === "list") return <textarea rows={2} {...field} />;
  if (type === "str") return <input type="text" placeholder={usual} {...field} />;
  return (
    <input
      type="text"
      inputMode="decimal"
      autoComplete="off"
      aria-invalid={problemId !== ""}
      aria-describedby={problemId || undefined}
      placeholder={usual || TEXTS.modelDefault}
      {...field}
    />
  );
}

/** Return a value as its field shows it; a list has a line for each of its texts. */
function textOf(value: Value | undefined): string {
  if (Array.isArray(value)) return value.map((one) => one.replaceAll("\n", "\\n")).join("\n");
  return value === undefined ? "" : String(value);
}

/** Return what a field has; null: nothing. */
function readValue(type: Parameter["type"], text: string): Value | null {
  if (type === "list") return text ? text.split("\n").filter(Boolean).map((one) => one.replaceAll("\\n", "\n")) : null;
  if (type === "str") return text || null;
  return text.trim() ? numberIn(text) : null;
}
