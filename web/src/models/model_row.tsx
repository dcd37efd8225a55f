/** One installed model, with what it takes of memory and, on demand, its details. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";

import type { LoadedModel, Model } from "../api/server.ts";
import { IconButton } from "../parts/button.tsx";
import { Confirm } from "../parts/dialog.tsx";
import { abilitiesOf, listed } from "../parts/model_facts.ts";
import { ModelMark } from "../parts/model_mark.tsx";
import { ModelName } from "../parts/model_menu.tsx";
import { ErrorText, Told } from "../parts/told.tsx";
import { useAnswer } from "../parts/use_answer.ts";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { bytes, grouped } from "../units.ts";
import { canQuantize } from "./create.ts";
import { LayersFigure } from "./layers_figure.tsx";
import { MemoryEstimate } from "./memory_estimate.tsx";
import { Placement } from "./placement.tsx";
import { QuantizeDialog } from "./quantize_dialog.tsx";

const OWN = "store"; // what the server may change

interface Properties {
  model: Model;
  /** The model of this name in memory, if there is one: perhaps an earlier one, which this one replaces or hides. */
  named: LoadedModel | undefined;
}

export function ModelRow({ model, named }: Properties): JSX.Element {
  const app = useApp();
  const { models } = app;
  const [isOpen, setOpen] = useState(false);
  const [asked, ask] = useState<"" | "quantize" | "delete">("");
  const isBusy = models.busy.value.has(model.name);
  const failure = models.failures.value.get(model.name);
  const canDelete = model.origin === OWN;
  const loaded = models.inMemory(model);
  const { parameter_size, quantization_level, family } = model.details;
  const facts = [family, parameter_size, quantization_level, bytes(model.size), canDelete ? "" : model.origin].filter(Boolean);
  return (
    <li class="model">
      <div class="model-head">
        <ModelMark name={model.name} />
        <h2><ModelName name={model.name} /></h2>
        {loaded && <span class="badge">{loaded.loading ? TEXTS.loadingNow : `${TEXTS.inMemory}: ${bytes(loaded.size)}`}</span>}
      </div>
      <p class="hint model-facts">{listed(facts)}</p>
      <p class="tags">{abilitiesOf(model).map((one) => <span>{one}</span>)}</p>
      {named && !loaded && <p class="hint">{TEXTS.earlierInMemory(bytes(named.size))}</p>}
      {loaded && <Placement loaded={loaded} />}
      <div class="model-actions">
        {model.capabilities.includes("completion") && <button type="button" onClick={() => app.chatWith(model.name)}>{TEXTS.chatWith}</button>}
        {!loaded && <button type="button" disabled={isBusy} onClick={() => void models.load(model.name)}>{TEXTS.load}</button>}
        {named && <button type="button" disabled={isBusy || named.loading === true} onClick={() => void models.unload(model.name)}>{TEXTS.unload}</button>}
        {canQuantize(quantization_level) && <button type="button" onClick={() => ask("quantize")}>{TEXTS.actions.quantize}</button>}
        <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>{TEXTS.details}</button>
        {canDelete && <button type="button" class="danger" disabled={isBusy} onClick={() => ask("delete")}>{TEXTS.delete}</button>}
      </div>
      {failure && (
        <div class="failure" role="alert">
          <strong>{TEXTS.failures[failure.action](model.name)}</strong>
          <IconButton icon="close" label={TEXTS.dismiss} onClick={() => models.dismiss(model.name)} />
          <p><Told text={failure.message} /></p>
        </div>
      )}
      {isOpen && <ModelDetails key={model.digest} name={model.name} loaded={loaded} />}
      {asked === "quantize" && <QuantizeDialog model={model.name} onClose={() => ask("")} />}
      {asked === "delete" && (
        <Confirm
          isDangerous
          question={TEXTS.deleteModel(model.name)}
          action={TEXTS.delete}
          onYes={() => void models.delete(model.name)}
          onClose={() => ask("")}
        />
      )}
    </li>
  );
}

function ModelDetails({ name, loaded }: { name: string; loaded: LoadedModel | undefined }): JSX.Element {
  const { models } = useApp();
  const { found: shown, error } = useAnswer(name, () => models.show(name));
  if (error) return <ErrorText text={error} />;
  if (!shown) return <p class="hint">…</p>;
  const memory = loaded && !loaded.loading ? [[TEXTS.facts.memory, bytes(loaded.size)], [TEXTS.facts.contextInMemory, grouped(loaded.context_length)]] : [];
  const facts = [
    [TEXTS.facts.engine, shown.engine],
    [TEXTS.facts.context, grouped(shown.details.context_length)],
    ...memory,
    ...Object.entries(shown.model_info).filter(([, value]) => value !== null).map(([key, value]) => [key, textOf(key, value)]),
  ];
  const texts = Object.entries(TEXTS.modelTexts).map(([part, title]) => [title, shown[part as keyof typeof TEXTS.modelTexts]]);
  return (
    <div class="model-details">
      {(!loaded || loaded.loading) && <MemoryEstimate name={name} />}
      <LayersFigure tensors={shown.tensors ?? []} />
      <dl>{facts.map(([key, value]) => <div><dt>{breakable(key ?? "")}</dt><dd>{value}</dd></div>)}</dl>
      {texts.filter(([, text]) => text).map(([title, text]) => (
        <details><summary>{title}</summary><pre tabIndex={0}>{text}</pre></details>
      ))}
    </div>
  );
}

function textOf(key: string, value: unknown): string {
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  if (typeof value === "number" && !key.endsWith("_id")) return grouped(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Return a dotted name that is broken after its dots and underscores, if it has to be. */
function breakable(name: string): ComponentChildren {
  return name.split(/(?<=[._])/).map((part) => <>{part}<wbr /></>);
}
