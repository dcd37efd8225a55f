/** Places the nodes of the prefix tree: a column for each level, a row for each end. */

import type { TreeNode } from "./live.ts";

export interface Box {
  node: TreeNode;
  /** The node's place in the list. */
  place: number;
  x: number;
  width: number;
  /** In rows. */
  row: number;
  rows: number;
}

export interface TreeLayout {
  boxes: Box[];
  width: number;
  rows: number;
}

const MIN_WIDTH = 14;
const PER_DOUBLING = 13;

/**
 * Return where each node is drawn; the root, which has no tokens, is not.
 *
 * A node begins where its parent ends, and is as tall as its descendants, so that what many share
 * is a tall box. The width grows with the logarithm of the tokens.
 */
export function layOut(nodes: readonly TreeNode[]): TreeLayout {
  const children = nodes.map((): number[] => []);
  nodes.forEach((node, place) => children[node.parent]?.push(place));
  const rows = nodes.map(() => 1);
  for (let place = nodes.length - 1; place >= 0; place--) {
    const own = children[place] ?? [];
    rows[place] = own.length ? own.reduce((all, child) => all + (rows[child] ?? 1), 0) : 1;
  }
  const boxes: Box[] = [];
  const free = nodes.map(() => 0); // the first free row of each node's children
  const ends = nodes.map(() => 0);
  nodes.forEach((node, place) => {
    if (node.parent < 0) return;
    const row = free[node.parent] ?? 0;
    const x = ends[node.parent] ?? 0;
    const width = MIN_WIDTH + PER_DOUBLING * Math.log2(1 + node.tokens);
    const tall = rows[place] ?? 1;
    free[node.parent] = row + tall;
    free[place] = row;
    ends[place] = x + width;
    boxes.push({ node, place, x, width, row, rows: tall });
  });
  return {
    boxes,
    width: Math.max(0, ...ends),
    rows: boxes.length ? (rows[0] ?? 0) : 0,
  };
}

/** Return what is said about a tree: the beginnings that running requests share, the longest first. */
export function sharedBeginnings(nodes: readonly TreeNode[]): { requests: number; tokens: number }[] {
  const found = new Map<number, number>();
  for (const node of nodes) {
    const sharing = node.sharing ?? 0;
    if (sharing > 1 && node.tokens > 0) {
      found.set(sharing, Math.max(found.get(sharing) ?? 0, node.start + node.tokens));
    }
  }
  return [...found]
    .map(([requests, tokens]) => ({ requests, tokens }))
    .sort((one, other) => other.requests - one.requests);
}
