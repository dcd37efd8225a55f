/** A model from GGUF files of this machine. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { type NewModel, QUANTIZATIONS, nameOfFile } from "./create.ts";
import { NameField, useNameCheck } from "./name_field.tsx";

const NONE: NewModel = { name: "", files: [], quantize: "", system: "" };

export function CreateForm(): JSX.Element {
  const { models } = useApp();
  const [model, setModel] = useState(NONE);
  const check = useNameCheck(model.name.trim());
  const set = (change: Partial<NewModel>) => setModel({ ...model, ...change });
  const create = (event: SubmitEvent & { currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    void models.create({ ...model, name: model.name.trim(), system: model.system.trim() });
    event.currentTarget.reset();
    setModel(NONE);
  };
  const choose = (files: File[]) => set({ files, name: model.name || nameOfFile(files[0]?.name ?? "") });
  return (
    <details class="create">
      <summary>{TEXTS.createFromFile}</summary>
      <form onSubmit={create}>
        <p class="hint">{TEXTS.createHint}</p>
        <label class="field">
          {TEXTS.files}
          <input type="file" accept=".gguf" multiple onChange={(event) => choose([...(event.currentTarget.files ?? [])])} />
        </label>
        <div class="fields">
          <NameField value={model.name} check={check} onInput={(name) => set({ name })} />
          <QuantizationChoice
            value={model.quantize}
            none={TEXTS.asInFile}
            onChange={(quantize) => set({ quantize })}
          />
        </div>
        <label class="field">
          {TEXTS.system}
          <textarea
            rows={2}
            value={model.system}
            placeholder={TEXTS.systemHint}
            onInput={(event) => set({ system: event.currentTarget.value })}
          />
        </label>
        <footer>
          <button type="submit" class="primary" disabled={!model.files.length || !model.name.trim() || check?.valid === false}>{TEXTS.create}</button>
        </footer>
      </form>
    </details>
  );
}

interface Choice {
  value: string;
  /** The text for no quantization, where that is possible. */
  none?: string;
  onChange: (type: string) => void;
}

export function QuantizationChoice({ value, none, onChange }: Choice): JSX.Element {
  return (
    <label class="field">
      {TEXTS.quantizeTo}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {none !== undefined && <option value="">{none}</option>}
        {QUANTIZATIONS.map((type) => <option value={type}>{type}</option>)}
      </select>
    </label>
  );
}
