/** Which turns of a long conversation are drawn: those near what is in sight. */

import type { Turn } from "./tree.ts";

/** Conversations up to this many turns are drawn whole, so that the browser's own search finds all. */
export const WHOLE = 60;
/** How many screens above and below what is in sight are drawn. */
const MARGIN = 1;

/** From the first index to the one after the last. */
export interface Range {
  from: number;
  to: number;
}

/** A turn by its index, or the height in pixels of turns that are not drawn, which begin at `from`. */
export type Row = { index: number } | { from: number; height: number };

const BARE = 64; // pixels, with the actions below and the space between turns
const MODEL = 28; // above an answer
const LINE = 25;
const CHARACTERS = 85; // in a line
const IMAGE = 290;

/** Guess the height in pixels of a turn that was not drawn yet. */
export function guess({ content, role, images = [] }: Turn): number {
  let lines = 0;
  for (const line of content.split("\n")) lines += Math.max(0.5, Math.ceil(line.length / CHARACTERS));
  return BARE + (role === "assistant" ? MODEL : 0) + LINE * lines + IMAGE * images.length;
}

/** Return which turns are near what is in sight: `view` pixels that begin at `top`. */
export function rangeOf(heights: readonly number[], top: number, view: number): Range {
  if (heights.length <= WHOLE) return { from: 0, to: heights.length };
  const [begin, end] = [top - MARGIN * view, top + view + MARGIN * view];
  let from = 0;
  let bottom = heights[0] ?? 0;
  while (from < heights.length - 1 && bottom < begin) bottom += heights[++from] ?? 0;
  let to = from + 1;
  for (; to < heights.length && bottom < end; to++) bottom += heights[to] ?? 0;
  return { from, to };
}

/** Return what is drawn: the turns of a range and those that are always kept, and the gaps between. */
export function rowsOf(heights: readonly number[], { from, to }: Range, kept: ReadonlySet<number>): Row[] {
  const rows: Row[] = [];
  for (const [index, height] of heights.entries()) {
    const last = rows.at(-1);
    if ((index >= from && index < to) || kept.has(index)) rows.push({ index });
    else if (last && "height" in last) last.height += height;
    else rows.push({ from: index, height });
  }
  return rows;
}

export function sum(heights: readonly number[]): number {
  return heights.reduce((all, height) => all + height, 0);
}
