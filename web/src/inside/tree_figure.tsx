/** The prefix tree: what requests share is one tall box at the left. */

import type { JSX } from "preact";

import { INSIDE } from "./texts.ts";
import { grouped } from "../units.ts";
import type { Cache } from "./live.ts";
import { type Box, layOut, sharedBeginnings } from "./tree_layout.ts";

const ROW = 20;
const LEAST_WIDTH = 300;
const CHARACTER = 6.5;

export function TreeFigure({ cache, moment }: { cache: Cache; moment: string }): JSX.Element {
  const { boxes, width, rows } = layOut(cache.tree);
  const shared = sharedBeginnings(cache.tree);
  const hidden = cache.tree.reduce((all, node) => all + (node.hidden ?? 0), 0);
  const text = [
    INSIDE.treeText(boxes.length, cache.tokens),
    ...shared.slice(0, 3).map(({ requests, tokens }) => INSIDE.sharing(requests, tokens)),
    ...(hidden ? [INSIDE.hidden(hidden)] : []),
  ].join(" ");
  const drawn = Math.max(width, LEAST_WIDTH);
  return (
    <figure class="inside-figure">
      <div class="figure-head">
        <h2>{INSIDE.tree}</h2>
        <span class="hint moment">{moment}</span>
      </div>
      <div class="tree-scroll" tabIndex={0} role="group" aria-label={INSIDE.tree}>
        <svg role="img" aria-label={text} width={drawn} height={rows * ROW} viewBox={`0 0 ${drawn} ${rows * ROW}`}>
          {boxes.map((box) => <NodeBox key={box.place} box={box} />)}
        </svg>
      </div>
      <figcaption>
        <span>{text}</span>
        <span class="legend">
          <span>{INSIDE.legend.number}</span>
          <span class="swatch shared-box-swatch">{INSIDE.legend.shared}</span>
          <span class="swatch request-box-swatch">{INSIDE.legend.request}</span>
          <span class="swatch cached-box-swatch">{INSIDE.legend.cached}</span>
          <span class="swatch lost-box-swatch">{INSIDE.legend.lost}</span>
          {cache.tree.some((node) => node.states) && <span class="swatch state-swatch">{INSIDE.legend.state}</span>}
        </span>
      </figcaption>
      <details>
        <summary>{INSIDE.tableOfTree}</summary>
        <div class="table-scroll" tabIndex={0} role="group" aria-label={INSIDE.tableOfTree}>
          <table>
            <thead><tr>{INSIDE.columns.map((name) => <th scope="col">{name}</th>)}</tr></thead>
            <tbody>
              {boxes.map(({ node, place }) => (
                <tr key={place}>
                  <td>{grouped(node.start)}</td>
                  <td>{grouped(node.tokens)}</td>
                  <td>{grouped(node.cached)}</td>
                  <td>{node.requests?.map(INSIDE.request).join(", ") ?? (node.sharing ? INSIDE.sharedBy(node.sharing) : "")}</td>
                  <td>{node.states ?? ""}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </figure>
  );
}

function NodeBox({ box }: { box: Box }): JSX.Element {
  const { node } = box;
  const requests = node.requests ?? [];
  const sharing = node.sharing ?? 0;
  const height = box.rows * ROW - 2;
  const room = Math.floor((box.width - 8) / CHARACTER);
  const label = sharing > 1 ? `${grouped(node.tokens)} ×${sharing}` : grouped(node.tokens);
  const kind = sharing > 1 ? "shared-box" : node.cached ? "cached-box" : "lost-box";
  const owner = requests.length === 1 && sharing === 1 ? requests[0] : undefined;
  const told = [
    INSIDE.nodeText(node.tokens, node.start, node.cached),
    ...(sharing > 1 ? [INSIDE.sharedBy(sharing)] : requests.map(INSIDE.request)),
    ...(node.states ? [INSIDE.states(node.states)] : []),
  ].join(", ");
  return (
    <g class={owner === undefined ? kind : `request-box request-box-${owner % 8}`}>
      <title>{told}</title>
      <rect x={box.x + 0.5} y={box.row * ROW + 0.5} width={box.width - 2} height={height} rx={3} />
      {label.length <= room && <text x={box.x + 6} y={box.row * ROW + Math.min(height / 2 + 4.5, 60)}>{label}</text>}
      {node.states ? <circle cx={box.x + box.width - 6} cy={box.row * ROW + 6} r={2.5} /> : null}
    </g>
  );
}
