/** The models: pulled, listed, loaded and unloaded, looked at, deleted. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { ViewHead } from "../parts/view_head.tsx";
import { useApp } from "../state/app.ts";
import type { Pull } from "../state/models.ts";
import { TEXTS, bytes, duration } from "../texts.ts";
import { ModelRow } from "./model_row.tsx";

const REFRESH_MS = 5000;

export function ModelsView(): JSX.Element {
  const { models } = useApp();
  useEffect(() => {
    void models.refresh();
    const timer = setInterval(() => document.hidden || void models.refresh(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const memory = models.loaded.value.reduce((all, model) => all + model.size, 0);
  const installed = models.installed.value;
  return (
    <main class="models">
      <ViewHead title={TEXTS.models}>
        {memory > 0 && <span class="hint">{TEXTS.memory(bytes(memory))}</span>}
      </ViewHead>
      <div class="models-column">
        <PullForm />
        {models.pulls.value.map((pull) => <PullRow key={pull.name} pull={pull} />)}
        <ul class="model-list" aria-label={TEXTS.models}>
          {installed?.map((model) => (
            <ModelRow key={model.name} model={model} loaded={models.loaded.value.find((one) => one.name === model.name)} />
          ))}
        </ul>
        {installed?.length === 0 && <p class="hint">{TEXTS.noModels}</p>}
      </div>
    </main>
  );
}

function PullForm(): JSX.Element {
  const { models } = useApp();
  const [name, setName] = useState("");
  const pull = (event: Event) => {
    event.preventDefault();
    if (!name.trim()) return;
    void models.pull(name.trim());
    setName("");
  };
  return (
    <form class="pull" onSubmit={pull}>
      <label for="pull">{TEXTS.pullLabel}</label>
      <div class="row">
        <input
          id="pull"
          value={name}
          placeholder={TEXTS.pullHint}
          autoComplete="off"
          autoCapitalize="off"
          spellcheck={false}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <button type="submit" class="primary" disabled={!name.trim()}>{TEXTS.pull}</button>
      </div>
    </form>
  );
}

function PullRow({ pull }: { pull: Pull }): JSX.Element {
  const { models } = useApp();
  const { name, total, completed, bytesPerSecond, error, isDone } = pull;
  const hasEnded = isDone || error !== "";
  const left = bytesPerSecond > 0 ? duration(((total - completed) / bytesPerSecond) * 1000) : "";
  const parts = [
    pull.status,
    total > 0 && `${bytes(completed)} of ${bytes(total)}`,
    !hasEnded && bytesPerSecond > 0 && `${bytes(bytesPerSecond)}/s`,
    !hasEnded && left && `${left} left`,
  ];
  return (
    <section class="pull-row" aria-label={`${TEXTS.pull} ${name}`}>
      <strong>{name}</strong>
      {error
        ? <p class="error" role="alert">{error}</p>
        : <progress aria-label={name} max={total || 1} value={isDone ? total || 1 : completed} />}
      {!error && <span class="hint">{parts.filter(Boolean).join(" · ")}</span>}
      <div class="pull-actions">
        {error && <button type="button" onClick={() => void models.pull(name)}>{TEXTS.tryAgain}</button>}
        {hasEnded
          ? <IconButton icon="close" label={TEXTS.dismiss} onClick={() => models.forget(name)} />
          : <button type="button" onClick={pull.cancel}>{TEXTS.cancel}</button>}
      </div>
    </section>
  );
}
