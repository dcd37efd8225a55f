/** The same prompt to two models or settings at once, side by side. */

import type { Signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { optionsProblem } from "../chat/options.ts";
import { OptionFields, SystemField } from "../chat/parameter_panel.tsx";
import { Statistics, hasStatistics } from "../chat/statistics.tsx";
import { Answer } from "../chat/turn_view.tsx";
import { IconButton } from "../parts/button.tsx";
import { Icon } from "../parts/icons.tsx";
import { ModelMenu } from "../parts/model_menu.tsx";
import { ErrorText } from "../parts/told.tsx";
import { ViewHead } from "../parts/view_head.tsx";
import { useApp } from "../state/app.ts";
import type { Side } from "../state/compare.ts";
import { TEXTS } from "../texts.ts";
import "../style/compare.css";

export function CompareView(): JSX.Element {
  const { compare, models } = useApp();
  const names = models.usual.value;
  useEffect(() => compare.settle(), [names]);
  const body = useRef<HTMLDivElement>(null);
  const sent = compare.sent.value;
  useEffect(() => body.current?.scrollTo({ top: 0 }), [sent]);
  return (
    <main class="compare">
      <ViewHead title={TEXTS.compare} />
      <div class="compare-body" ref={body}>
        {compare.prompt.value && <p class="bubble" dir="auto">{compare.prompt.value}</p>}
        <div class="sides">{compare.sides.map((side) => <SideView side={side} />)}</div>
      </div>
      <PromptForm />
    </main>
  );
}

function SideView({ side }: { side: Signal<Side> }): JSX.Element {
  const { compare, models } = useApp();
  const { name, system, options, isOpen, turn } = side.value;
  const set = (change: Partial<Side>) => (side.value = { ...side.value, ...change });
  const count = Object.keys(options).length + (system.trim() ? 1 : 0);
  return (
    <section class="side" aria-label={TEXTS.side(name)}>
      <h2 class="off-screen">{TEXTS.side(name)}</h2>
      <ModelMenu
        label={TEXTS.modelOf(name)}
        names={models.forChat.value.map((one) => one.name)}
        value={compare.modelOf(side.value)}
        onChange={(model) => set({ model })}
      />
      <details open={isOpen} onToggle={(event) => event.target === event.currentTarget && set({ isOpen: event.currentTarget.open })}>
        <summary>{TEXTS.settingsOf(count)}</summary>
        <div class="side-settings">
          <SystemField value={system} onChange={(text) => set({ system: text })} />
          <OptionFields options={options} onChange={(changed) => set({ options: changed })} />
        </div>
      </details>
      <div class="side-answer" aria-live="polite" aria-busy={turn?.state === "streaming"}>
        {turn ? <Answer turn={turn} isLast={false} /> : <p class="hint">{TEXTS.noAnswer}</p>}
      </div>
      {turn && hasStatistics(turn) && <footer><Statistics turn={turn} /></footer>}
    </section>
  );
}

function PromptForm(): JSX.Element {
  const { compare, models } = useApp();
  const [text, setText] = useState("");
  const isRunning = compare.isRunning.value;
  const gone = compare.sides.map((side) => compare.modelOf(side.value)).find((name) => models.isGone(name));
  const wrong = compare.sides.map((side) => optionsProblem(models.parameters.value, side.value.options)).find(Boolean) ?? "";
  const problem = gone ? TEXTS.modelGone(gone) : wrong;
  const canSend = !isRunning && !problem && text.trim() !== "" && models.forChat.value.length > 0;
  const send = (event: Event) => {
    event.preventDefault();
    if (!canSend) return;
    void compare.send(text.trim());
    setText("");
  };
  return (
    <form class="composer" onSubmit={send}>
      {problem && <ErrorText text={problem} />}
      <textarea
        id="message"
        rows={1}
        dir="auto"
        aria-label={TEXTS.message}
        placeholder={TEXTS.comparePlaceholder}
        value={text}
        autoFocus
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
        }}
      />
      <div class="composer-actions">
        {isRunning ? (
          <IconButton class="primary" icon="stop" label={TEXTS.stop} onClick={({ detail }) => detail < 2 && compare.stop()} />
        ) : (
          <button type="submit" class="icon-button primary" aria-label={TEXTS.send} title={TEXTS.send} disabled={!canSend}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}
