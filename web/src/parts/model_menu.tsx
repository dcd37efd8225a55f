/** The choice of a model, with what each one is, what it can do, and a search. */

import type { JSX } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { Model } from "../api/server.ts";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { Icon } from "./icons.tsx";
import { abilitiesOf, factsOf, hasWords, listed } from "./model_facts.ts";
import { ModelMark } from "./model_mark.tsx";
import { Popover } from "./popover.tsx";
import { useInMemoryFirst } from "./use_in_memory_first.ts";

interface Properties {
  names: readonly string[];
  value: string;
  onChange: (name: string) => void;
  label?: string;
}

export function ModelMenu({ names, value, onChange, label = TEXTS.model }: Properties): JSX.Element {
  const { models } = useApp();
  const isKnown = models.installed.value !== null || models.error.value !== "";
  const isGone = models.isGone(value) && !names.includes(value);
  const shown = !names.length ? TEXTS.noModelToChoose : isGone ? TEXTS.goneModel(value) : value;
  return (
    <Popover
      class={`model-choice ${isKnown ? "" : "unknown"} ${isGone ? "danger" : ""}`}
      label={TEXTS.chosenModel(label, shown)}
      title={shown}
      face={<>{names.length > 0 && <ModelMark name={shown} />}<ModelName name={shown} /><Icon name="down" /></>}
      disabled={!names.length}
      onOpen={() => void models.refresh()}
    >
      {(close) => (
        <ModelList
          models={names.map((name) => models.find(name)).filter((one) => one !== undefined)}
          value={value}
          onChoose={(name) => {
            close();
            if (name !== value) onChange(name);
          }}
        />
      )}
    </Popover>
  );
}

/** A name whose usual tag stands back. */
export function ModelName({ name }: { name: string }): JSX.Element {
  const [, short = name, tag = ""] = /^(.+)(:latest)$/.exec(name) ?? [];
  return <bdi class="model-name">{short}{tag && <span class="tag">{tag}</span>}</bdi>;
}

interface List {
  models: readonly Model[];
  value: string;
  onChoose: (name: string) => void;
}

/** The search has the focus; the arrow keys go through the models, and Enter chooses. */
function ModelList({ models, value, onChoose }: List): JSX.Element {
  const [words, setWords] = useState("");
  const found = useInMemoryFirst(models).filter((model) => hasWords(model, words));
  const [at, setAt] = useState(() => Math.max(found.findIndex((model) => model.name === value), 0));
  const list = useRef<HTMLUListElement>(null);
  const id = useId();
  const optionId = (place: number) => `${id}-${String(place)}`;
  useLayoutEffect(() => list.current?.querySelector(".active")?.scrollIntoView({ block: "nearest" }), [at]);
  const onKeyDown = (event: KeyboardEvent) => {
    const last = found.length - 1;
    const places: Partial<Record<string, number>> = { ArrowDown: Math.min(at + 1, last), ArrowUp: Math.max(at - 1, 0), PageDown: last, PageUp: 0 };
    const place = places[event.key];
    const model = found[at];
    if (place !== undefined) setAt(place);
    else if (event.key === "Enter" && model) onChoose(model.name);
    else return;
    event.preventDefault();
  };
  return (
    <div class="model-menu">
      <label class="search">
        <Icon name="search" />
        <input
          type="text"
          role="combobox"
          aria-label={TEXTS.searchModels}
          aria-autocomplete="list"
          aria-expanded="true"
          aria-controls={id}
          aria-activedescendant={found.length ? optionId(at) : undefined}
          placeholder={TEXTS.searchModels}
          autoComplete="off"
          autoFocus={!matchMedia("(pointer: coarse)").matches}
          value={words}
          onInput={(event) => {
            setWords(event.currentTarget.value);
            setAt(0);
          }}
          onKeyDown={onKeyDown}
        />
      </label>
      <ul ref={list} id={id} role="listbox" aria-label={TEXTS.models}>
        {found.map((model, place) => (
          <li
            key={model.name}
            id={optionId(place)}
            role="option"
            aria-selected={model.name === value}
            class={place === at ? "active" : ""}
            onPointerMove={() => setAt(place)}
            onClick={() => onChoose(model.name)}
          >
            <Option model={model} />
          </li>
        ))}
      </ul>
      {!found.length && <p class="hint">{TEXTS.noSuchModel}</p>}
      <a class="button" href="#/models">{TEXTS.manageModels}</a>
    </div>
  );
}

function Option({ model }: { model: Model }): JSX.Element {
  const { models } = useApp();
  const isLoaded = models.inMemory(model) !== undefined;
  return (
    <>
      <ModelMark name={model.name} />
      <span class="model-line">
        <ModelName name={model.name} />
        {isLoaded && <span class="badge">{TEXTS.inMemory}</span>}
      </span>
      <span class="hint">{listed([...factsOf(model), ...abilitiesOf(model)])}</span>
    </>
  );
}
