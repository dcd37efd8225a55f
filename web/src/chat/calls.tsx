/** The calls of tools in an answer, and the fields in which their results are given by hand. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import type { Call, Turn } from "./tree.ts";

export function Calls({ turn, calls, isOpen }: { turn: Turn; calls: Call[]; isOpen: boolean }): JSX.Element {
  const { chats } = useApp();
  const [results, setResults] = useState<string[]>([]);
  const send = (event: Event) => {
    event.preventDefault();
    chats.answerCalls(turn, calls.map((_, at) => results[at] ?? ""));
  };
  const set = (at: number, text: string) => setResults(calls.map((_, other) => (other === at ? text : (results[other] ?? ""))));
  return (
    <form class="calls" onSubmit={send}>
      {calls.map((call, at) => (
        <section class="call" aria-label={TEXTS.callOf(call.name)}>
          <header>{TEXTS.callOf(call.name)}</header>
          <pre tabIndex={0}>{JSON.stringify(call.arguments, null, 2)}</pre>
          {isOpen && (
            <label class="field">
              {TEXTS.resultOf(call.name)}
              <textarea rows={2} dir="auto" value={results[at] ?? ""} onInput={(event) => set(at, event.currentTarget.value)} />
            </label>
          )}
        </section>
      ))}
      {isOpen && <button type="submit" class="primary">{TEXTS.sendResults}</button>}
    </form>
  );
}
