/** An answer as its tokens: coloured by doubt, each with what could have stood in its place. */

import type { JSX } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";

import { keepUnder } from "../parts/under.ts";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { decimal, percent } from "../units.ts";
import { Legend } from "./legend.tsx";
import { type Candidate, type Token, doubt, entropy, textWith } from "./token_text.ts";
import type { Turn } from "./tree.ts";

const STEPS: Readonly<Record<string, number>> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** The arrow keys go from token to token; Enter goes into the alternatives, Escape leaves them. */
export function TokenView({ turn }: { turn: Turn }): JSX.Element {
  const { settings } = useApp();
  const { tokens = [], tokensFrom = 0 } = turn;
  const [at, setAt] = useState(-1);
  const [isPinned, setPinned] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const id = useId();
  const token = tokens[at];
  const close = () => {
    setAt(-1);
    setPinned(false);
  };
  useEffect(() => {
    if (!isPinned) return;
    const onDown = ({ target }: Event) => {
      if (!place.current?.contains(target as Node)) close();
    };
    document.addEventListener("pointerdown", onDown);
    return () => document.removeEventListener("pointerdown", onDown);
  }, [isPinned]);
  const point = (event: Event, pins: boolean) => {
    const found = event.target instanceof HTMLElement ? event.target.dataset.at : undefined;
    if (found === undefined || (isPinned && !pins)) return;
    setAt(Number(found));
    setPinned(pins);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = STEPS[event.key];
    if (step !== undefined) setAt(Math.min(Math.max(at + step, 0), tokens.length - 1));
    else if (event.key === "Home") setAt(0);
    else if (event.key === "End") setAt(tokens.length - 1);
    else if (event.key === "Enter" && token) firstButton(place.current)?.focus();
    else if (event.key === "Escape" && token) close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="token-view" ref={place} onPointerLeave={() => isPinned || close()}>
      {tokensFrom > 0 && <div class="token-text" dir="auto">{turn.content.slice(0, tokensFrom)}</div>}
      <div
        ref={list}
        class="token-text"
        role="listbox"
        tabIndex={0}
        dir="auto"
        aria-label={TEXTS.tokens}
        aria-activedescendant={token ? `${id}-${at}` : undefined}
        onFocus={() => at < 0 && list.current?.matches(":focus-visible") && setAt(0)}
        onBlur={({ relatedTarget }) => {
          if (!isPinned && !place.current?.contains(relatedTarget as Node | null)) close();
        }}
        onKeyDown={onKeyDown}
        onPointerOver={(event) => point(event, false)}
        onClick={(event) => point(event, true)}
      >
        {tokens.map((one, index) => (
          <span
            role="option"
            id={`${id}-${index}`}
            data-at={index}
            aria-selected={index === at}
            class={`token doubt-${doubt(one, settings.colour.value)} ${one.text === "" ? "control" : ""}`}
          >
            {shownIn(one)}
          </span>
        ))}
      </div>
      <Legend />
      {token && (
        <Alternatives
          turn={turn}
          at={at}
          token={token}
          anchor={`${id}-${at}`}
          onLeave={() => list.current?.focus()}
          onDone={close}
        />
      )}
    </div>
  );
}

interface Properties {
  turn: Turn;
  at: number;
  token: Token;
  /** The id of the token's element, which this is put under. */
  anchor: string;
  onLeave: () => void;
  onDone: () => void;
}

function Alternatives({ turn, at, token, anchor, onLeave, onDone }: Properties): JSX.Element {
  const { chats } = useApp();
  const [least, most] = entropy(token);
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const token = document.getElementById(anchor);
    place.current?.showPopover();
    if (place.current && token) return keepUnder(place.current, token);
  }, [anchor]);
  const choose = (other: Candidate) => {
    onDone();
    chats.branch(turn, at, other);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? "nextElementSibling" : event.key === "ArrowUp" ? "previousElementSibling" : null;
    if (step) {
      let item = document.activeElement?.closest("li")?.[step];
      while (item && !item.querySelector("button:enabled")) item = item[step];
      item?.querySelector<HTMLElement>("button")?.focus();
    } else if (event.key === "Escape") onLeave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div ref={place} popover="manual" class="alternatives" role="group" aria-label={TEXTS.alternatives} onKeyDown={onKeyDown}>
      <p>
        <bdi class="token-name">{named(token)}</bdi>
        <strong>{percent(Math.exp(token.logprob))}</strong>
      </p>
      <p class="hint">{TEXTS.tokenFacts(decimal(token.logprob, 3), decimal(least, 2), least === most)}</p>
      <ul>
        {token.top.map((other) => {
          const isItself = named(other) === named(token);
          const canGoOn = !isItself && !chats.isRunning && textWith(turn, at, other) !== null;
          return (
            <li>
              <button type="button" disabled={!canGoOn} aria-current={isItself} onClick={() => choose(other)}>
                <bdi class="token-name">{named(other)}</bdi>
                <span class="share"><span style={{ width: `${100 * Math.exp(other.logprob)}%` }} /></span>
                <span class="percent">{percent(Math.exp(other.logprob))}</span>
              </button>
            </li>
          );
        })}
      </ul>
      <p class="hint">{TEXTS.goOn}</p>
    </div>
  );
}

function firstButton(place: HTMLElement | null): HTMLElement | null {
  return place?.querySelector<HTMLElement>(".alternatives button:enabled") ?? null;
}

/** What stands in the text: line ends stay, and are seen. */
function shownIn({ text, bytes }: Token): string {
  if (text === "") return TEXTS.control;
  return bytes ? hex(bytes) : text.replaceAll("\n", "↵\n");
}

function named({ text, bytes }: Candidate): string {
  if (text === "") return TEXTS.control;
  return bytes ? hex(bytes) : text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}

function hex(bytes: number[]): string {
  return `‹${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}›`;
}
