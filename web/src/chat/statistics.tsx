/** What is counted and measured of an answer. */

import type { JSX } from "preact";

import { TEXTS } from "../texts.ts";
import { duration } from "../units.ts";
import type { Turn, Usage } from "./tree.ts";

/** Whether an answer has ended, and its counts are known. */
export function hasStatistics<T extends Turn>(turn: T): turn is T & { usage: Usage } {
  return turn.usage !== undefined && turn.state !== "streaming";
}

export function Statistics({ turn }: { turn: Turn & { usage: Usage } }): JSX.Element {
  const { usage: texts } = TEXTS;
  const { usage } = turn;
  const listed = turn.tokens?.length ?? 0; // the token that ends an answer is counted, and not listed
  const tokens = usage.isMore ? texts.moreTokens(usage.tokens) : listed > 0 && listed === usage.tokens - 1 ? texts.tokensAndEnd(listed) : texts.tokens(usage.tokens);
  const rows: [string, string][] = [
    [texts.model, turn.model ?? ""],
    [texts.answer, tokens],
    [texts.speed, usage.tokensPerSecond > 0 ? texts.rate(usage.tokensPerSecond) : ""],
    [texts.firstToken, usage.firstTokenMs > 0 ? texts.after(usage.firstTokenMs) : ""],
    [texts.prompt, usage.promptTokens > 0 ? texts.cached(usage.cachedTokens, usage.promptTokens) : ""],
    [texts.loading, usage.loadMs === undefined ? "" : duration(usage.loadMs)],
  ];
  return (
    <dl class="statistics">
      {rows.filter(([, value]) => value).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}
