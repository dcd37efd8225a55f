/** All versions of an answer beside each other; one of them is chosen to go on with. */

import type { JSX } from "preact";

import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { Statistics, hasStatistics } from "./statistics.tsx";
import { type Turn } from "./tree.ts";
import { Answer } from "./turn_view.tsx";

export function SideBySide({ turns, chosen }: { turns: Turn[]; chosen: string }): JSX.Element {
  const { chats } = useApp();
  return (
    <ol class="columns" aria-label={TEXTS.sideBySide}>
      {turns.map((turn, at) => (
        <li key={turn.id} class={`column ${turn.id === chosen ? "chosen" : ""}`}>
          <h2>{TEXTS.version(at + 1, turns.length)}</h2>
          <Answer turn={turn} isLast={false} />
          <footer>
            {hasStatistics(turn) && <Statistics turn={turn} />}
            <button type="button" onClick={() => chats.choose(turn)}>{TEXTS.useAnswer}</button>
          </footer>
        </li>
      ))}
    </ol>
  );
}
