/** The turns of a conversation. Of a long one only those near what is in sight are in the document. */

import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { SideBySide } from "./side_by_side.tsx";
import { Start } from "./start.tsx";
import type { Turn } from "./tree.ts";
import { TurnView } from "./turn_view.tsx";
import { type Range, guess, rangeOf, rowsOf, sum } from "./window.ts";

const AT_END = 2; // pixels
const NEAR_END = 60;

interface Properties {
  turns: Turn[];
  /** The versions of each turn, by the id of the one before it. */
  others: Map<string, Turn[]>;
}

/** While the end is in sight, it stays there when more text comes. */
export function TurnList({ turns, others }: Properties): JSX.Element {
  const app = useApp();
  const { chats } = app;
  const id = chats.open.value.id;
  const sight = useSight(id, turns);
  const rows = rowsOf(sight.heights, sight.range, useKept(turns, sight.focused));
  const isAnnounced = sight.range.to === turns.length; // else what is scrolled to would be read out
  return (
    <div class="turns" ref={sight.place} onScroll={sight.onScroll} tabIndex={-1}>
      {!turns.length && <Start />}
      <ol
        ref={sight.list}
        aria-live={isAnnounced ? "polite" : "off"}
        aria-busy={chats.running.value.has(id)}
        onFocusIn={(event) => (sight.focused.current = turnOf(event.target))}
        onFocusOut={() => (sight.focused.current = "")}
      >
        {rows.map((row) => {
          if ("height" in row) return <Gap key={row.from === sight.range.to ? "below" : row.from} height={row.height} />;
          const turn = turns[row.index];
          if (!turn) return null;
          const versions = others.get(turn.parent) ?? [turn];
          const isBeside = turn.parent !== "" && turn.parent === chats.sideBySide.value && versions.length > 1;
          return (
            <li
              key={isBeside ? turn.parent : turn.id}
              class={isBeside ? "side-by-side" : `turn ${turn.role}`}
              data-state={turn.state}
              data-turn={turn.id}
              aria-posinset={row.index + 1}
              aria-setsize={turns.length}
            >
              {isBeside
                ? <SideBySide turns={versions} chosen={turn.id} />
                : <TurnView turn={turn} alternatives={versions} isLast={turn === turns.at(-1)} />}
            </li>
          );
        })}
      </ol>
      {sight.isFar && (
        <IconButton
          class="to-end"
          icon="down"
          label={TEXTS.toEnd}
          onClick={() => {
            sight.goToEnd();
            app.write(); // the button goes
          }}
        />
      )}
    </div>
  );
}

function Gap({ height }: { height: number }): JSX.Element {
  return <li class="gap" role="presentation" aria-hidden="true" style={{ height: `${String(height)}px` }} />;
}

/** Return the turns that stay in the document: the last one, and where something is being typed. */
function useKept(turns: Turn[], focused: { current: string }): ReadonlySet<number> {
  const { editing } = useApp();
  const ids = [editing.value, focused.current].filter(Boolean);
  return new Set([turns.length - 1, ...ids.map((id) => turns.findIndex((turn) => turn.id === id))]);
}

/**
 * Follow what is in sight. A turn's height is a guess until it was drawn; the browser keeps what is
 * in sight in its place when a guess above it becomes a height.
 */
function useSight(id: string, turns: Turn[]) {
  const place = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLOListElement>(null);
  const focused = useRef("");
  const isAtEnd = useRef(true);
  const seen = useRef({ top: 0, left: 0 }); // the place, and pixels from there to the end
  const known = useRef(new Map<string, number>()).current;
  const [, redraw] = useState(0);
  const [isFar, setFar] = useState(false); // the end is not in sight

  const shown = id + useApp().chats.sent.value; // another one begins at its end; a message that is sent is in sight
  const shownId = useRef(shown);
  if (shownId.current !== shown) {
    isAtEnd.current = true;
    seen.current = { top: 0, left: 0 };
  }
  shownId.current = shown;
  const heights = turns.map((turn) => known.get(turn.id) ?? guess(turn));
  const view = place.current?.clientHeight ?? innerHeight;
  const from = isAtEnd.current ? sum(heights) - view : (place.current?.scrollTop ?? 0);
  const now = useRef<{ turns: Turn[]; range: Range }>({ turns, range: { from: 0, to: 0 } });
  now.current = { turns, range: rangeOf(heights, from, view) };

  const update = () => {
    if (!place.current || !list.current) return;
    for (const row of list.current.children) {
      const turn = turnOf(row);
      if (turn) known.set(turn, row.getBoundingClientRect().height);
    }
    const found = now.current.turns.map((turn) => known.get(turn.id) ?? guess(turn));
    const next = rangeOf(found, place.current.scrollTop, place.current.clientHeight);
    if (next.from !== now.current.range.from || next.to !== now.current.range.to) redraw((count) => count + 1);
  };
  const look = () => {
    if (!place.current) return;
    const { scrollTop, scrollHeight, clientHeight } = place.current;
    const left = scrollHeight - scrollTop - clientHeight;
    const was = seen.current;
    // The user scrolls in both; a guess above that becomes a height changes the place only.
    if (left < AT_END || (left < NEAR_END && scrollTop > was.top && left < was.left)) isAtEnd.current = true;
    else if (scrollTop < was.top && left > was.left) isAtEnd.current = false;
    seen.current = { top: scrollTop, left };
    setFar(!isAtEnd.current && left > NEAR_END);
    // At the end nothing else moves it, so that a smaller `scrollTop` is the user's.
    place.current.style.overflowAnchor = isAtEnd.current ? "none" : "";
  };
  const stay = () => {
    look(); // the user may have scrolled, and the event not have come yet
    if (!isAtEnd.current || !place.current || !now.current.turns.length) return; // a start is read from its top
    place.current.scrollTo({ top: place.current.scrollHeight });
    seen.current = { top: place.current.scrollTop, left: 0 };
  };
  useLayoutEffect(stay);
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      stay();
      update();
    });
    for (const part of [list.current, place.current]) if (part) observer.observe(part);
    return () => observer.disconnect();
  }, []);
  const onScroll = () => {
    look();
    update();
  };
  const goToEnd = () => {
    isAtEnd.current = true;
    stay();
  };
  return { place, list, focused, heights, range: now.current.range, onScroll, isFar, goToEnd };
}

/** Return the id of the turn that an element is in; empty: of none. */
function turnOf(element: EventTarget | null): string {
  const row = element instanceof Element ? element.closest<HTMLElement>("li[data-turn]") : null;
  return row?.dataset.turn ?? "";
}
