/** Asks to which type a model is quantized, and what the new one is called. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Dialog } from "../parts/dialog.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { nameOfQuantized } from "./create.ts";
import { QuantizationChoice } from "./create_form.tsx";
import { NameField, useNameCheck } from "./name_field.tsx";

const USUAL = "Q4_K_M";

export function QuantizeDialog({ model, onClose }: { model: string; onClose: () => void }): JSX.Element {
  const { models } = useApp();
  const [type, setType] = useState<string>(USUAL);
  const [name, setName] = useState(nameOfQuantized(model, USUAL));
  const check = useNameCheck(name.trim());
  const quantize = (event: Event) => {
    event.preventDefault();
    void models.quantize(model, type, name.trim());
    onClose();
  };
  const choose = (next: string) => {
    if (name === nameOfQuantized(model, type)) setName(nameOfQuantized(model, next));
    setType(next);
  };
  return (
    <Dialog title={TEXTS.quantizeModel(model)} onClose={onClose}>
      <form class="fields-below" onSubmit={quantize}>
        <QuantizationChoice value={type} onChange={choose} />
        <NameField value={name} check={check} onInput={setName} />
        <p class="hint">{TEXTS.quantizeHint}</p>
        <footer>
          <button type="button" onClick={onClose}>{TEXTS.cancel}</button>
          <button type="submit" class="primary" disabled={!name.trim() || name.trim() === model || check?.valid === false}>{TEXTS.actions.quantize}</button>
        </footer>
      </form>
    </Dialog>
  );
}
