/** What a conversation shows before its first message: its model, and below the field what it can be asked. */

import type { JSX } from "preact";

import type { Model } from "../api/server.ts";
import { Icon } from "../parts/icons.tsx";
import { abilitiesOf, factsOf, listed } from "../parts/model_facts.ts";
import { ModelMark } from "../parts/model_mark.tsx";
import { ModelName } from "../parts/model_menu.tsx";
import { ErrorText } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { trialsOf } from "./trials.ts";

const LONG_NAME = 32; // characters

export function Start(): JSX.Element | null {
  const { models } = useApp();
  const model = useModel();
  if (models.installed.value === null) return null;
  return (
    <div class="start">
      {model ? <About model={model} /> : !models.forChat.value.length && <NoModel />}
    </div>
  );
}

/** What the model can be asked: a click sends the message. */
export function Trials(): JSX.Element | null {
  const app = useApp();
  const model = useModel();
  if (!model) return null;
  const isBlocked = app.problem.value !== "" || app.chats.isRunning;
  return (
    <section class="start-trials">
      <h3 class="off-screen">{TEXTS.tryThis}</h3>
      <ul class="trials">
        {trialsOf(model).map((trial) => (
          <li key={trial.title}>
            <button type="button" disabled={isBlocked} onClick={() => app.try(trial)}>
              <Icon name={trial.icon} />
              <strong>{trial.title}</strong>
              <span>{trial.message}</span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Return the model of the open conversation; undefined: it is gone, or there is none. */
function useModel(): Model | undefined {
  const { goneModel, model, models } = useApp();
  return models.find(goneModel.value || model.value);
}

function NoModel(): JSX.Element {
  return (
    <>
      <p class="start-title">{TEXTS.noModel}</p>
      <a class="button primary" href="#/models">{TEXTS.pullOne}</a>
    </>
  );
}

function About({ model }: { model: Model }): JSX.Element {
  const { context_length } = model.details;
  const context = context_length ? [TEXTS.contextOf(context_length)] : [];
  return (
    <>
      <ModelMark name={model.name} />
      <h2 class={`start-title ${model.name.length > LONG_NAME ? "is-long" : ""}`}><ModelName name={model.name} /></h2>
      <p class="hint">{listed([...factsOf(model), ...context])}</p>
      <ul class="tags" aria-label={TEXTS.can}>{abilitiesOf(model).map((one) => <li>{one}</li>)}</ul>
      <Memory model={model} />
    </>
  );
}

/** Whether the model is in memory; its height is the same in each state. */
function Memory({ model }: { model: Model }): JSX.Element {
  const { models } = useApp();
  const loaded = models.inMemory(model);
  const failure = models.failures.value.get(model.name);
  const isBusy = models.busy.value.has(model.name) || loaded?.loading === true;
  const text = isBusy ? TEXTS.loading(model.name) : loaded ? TEXTS.inMemoryOf(bytes(loaded.size)) : TEXTS.notInMemory;
  return (
    <>
      <p class={`start-memory ${loaded && !isBusy ? "is-loaded" : ""}`} role="status">
        <span>{text}</span>
        {!loaded && !isBusy && <button type="button" onClick={() => void models.load(model.name)}>{TEXTS.loadNow}</button>}
      </p>
      {failure?.action === "load" && <ErrorText text={failure.message} />}
    </>
  );
}
