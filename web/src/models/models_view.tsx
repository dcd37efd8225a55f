/** The models: pulled, created, listed, loaded and unloaded, looked at, quantized, deleted. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { Model } from "../api/server.ts";
import { hasWords } from "../parts/model_facts.ts";
import { SearchField } from "../parts/search_field.tsx";
import { useInMemoryFirst } from "../parts/use_in_memory_first.ts";
import { ViewHead } from "../parts/view_head.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { CreateForm } from "./create_form.tsx";
import { ModelRow } from "./model_row.tsx";
import { TransferRow } from "./transfer_row.tsx";

const REFRESH_MS = 5000;

export function ModelsView(): JSX.Element {
  const { models } = useApp();
  useEffect(() => {
    void models.refresh();
    const timer = setInterval(() => {
      if (!document.hidden && !models.error.value) void models.refresh();
    }, REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const memory = models.loaded.value.reduce((all, model) => all + (model.loading ? 0 : model.size), 0);
  const installed = models.installed.value;
  return (
    <main class="models">
      <ViewHead title={TEXTS.models}>
        {memory > 0 && <span class="hint">{TEXTS.memory(bytes(memory))}</span>}
      </ViewHead>
      <div class="models-column">
        <PullForm />
        <CreateForm />
        {models.transfers.all.value.map((one) => <TransferRow key={one.name} transfer={one} />)}
        {installed && installed.length > 0 && <ModelList installed={installed} />}
        {memory > 0 && <p class="hint">{TEXTS.memoryCounts}</p>}
        {installed?.length === 0 && <p class="hint">{TEXTS.noModels}</p>}
      </div>
    </main>
  );
}

/** The models that a search finds. */
function ModelList({ installed }: { installed: readonly Model[] }): JSX.Element {
  const { models } = useApp();
  const [words, setWords] = useState("");
  const found = useInMemoryFirst(installed).filter((model) => hasWords(model, words));
  return (
    <>
      <SearchField id="search-models" label={TEXTS.searchModels} value={words} onInput={setWords} />
      <ul class="model-list" aria-label={TEXTS.models}>
        {found.map((model) => (
          <ModelRow key={model.name} model={model} named={models.loaded.value.find((one) => one.name === model.name)} />
        ))}
      </ul>
      <p class="hint" role="status">{found.length ? "" : TEXTS.noSuchModel}</p>
    </>
  );
}

function PullForm(): JSX.Element {
  const { models } = useApp();
  const [name, setName] = useState("");
  const isNamed = name.trim().replace(/^https?:\/\//, "") !== "";
  const pull = (event: Event) => {
    event.preventDefault();
    if (!isNamed) return;
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
        <button type="submit" class="primary" disabled={!isNamed}>{TEXTS.pull}</button>
      </div>
    </form>
  );
}
