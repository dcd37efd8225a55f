/** The calls of tools in an answer, and their results: given by hand, or by URLs that the user allows. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Confirm } from "../parts/dialog.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { urlsOf } from "./tool_calls.ts";
import { type Call, type Turn, argumentsOf } from "./tree.ts";

export function Calls({ turn, calls, isOpen }: { turn: Turn; calls: Call[]; isOpen: boolean }): JSX.Element {
  const { chats, settings } = useApp();
  const [results, setResults] = useState<string[]>([]);
  const [asked, ask] = useState<string[]>([]);
  const isAsked = isOpen && !chats.isRunning;
  const urls = urlsOf(chats.open.value, turn);
  const sent = urls.filter((url, at) => url && !results[at]);
  const answer = () => void chats.answerCalls(turn, calls.map((_, at) => results[at] ?? ""));
  const send = (event: Event) => {
    event.preventDefault();
    const unknown = [...new Set(sent)].filter((url) => !settings.allowsTool(url));
    if (unknown.length) ask(unknown);
    else answer();
  };
  const allow = () => {
    for (const url of asked) settings.allowTool(url, true);
    answer();
  };
  const set = (at: number, text: string) => setResults(calls.map((_, other) => (other === at ? text : (results[other] ?? ""))));
  return (
    <form class="calls" onSubmit={send}>
      {calls.map((call, at) => (
        <section class="call" aria-label={TEXTS.callOf(call.name)}>
          <header>{TEXTS.callOf(call.name)}</header>
          <pre tabIndex={0}>{argumentsOf(call)}</pre>
          {isAsked && (
            <label class="field">
              {TEXTS.resultOf(call.name)}
              <textarea
                rows={2}
                dir="auto"
                placeholder={urls[at] ? TEXTS.resultFrom(urls[at]) : ""}
                value={results[at] ?? ""}
                onInput={(event) => set(at, event.currentTarget.value)}
              />
            </label>
          )}
        </section>
      ))}
      {isOpen && !isAsked && <p class="waiting">{TEXTS.waitingForResults}</p>}
      {isAsked && <button type="submit" class="primary">{sent.length ? TEXTS.sendCalls : TEXTS.sendResults}</button>}
      {asked.length > 0 && (
        <Confirm question={TEXTS.allowUrls(asked)} title={TEXTS.toolUrl} action={TEXTS.allow} onYes={allow} onClose={() => ask([])} />
      )}
    </form>
  );
}
