/** The cells of the cache, colored by who owns them or by how long they have been free. */

import type { JSX } from "preact";
import { useCallback, useState } from "preact/hooks";

import { INSIDE } from "./texts.ts";
import { Canvas, type Draw, hueOf } from "./canvas.tsx";
import type { CellUse } from "./live.ts";

const SHARED = 0;
const CACHED = -1;
const EMPTY = -2;
const SIDE = 9; // at most

type Colour = "owner" | "age";

export function CellsFigure({ groups, moment }: { groups: readonly CellUse[]; moment: string }): JSX.Element {
  const [by, setBy] = useState<Colour>("owner");
  const requests = new Set(groups.flatMap((group) => group.owners.filter((owner) => owner > 0)));
  return (
    <figure class="inside-figure">
      <div class="figure-head">
        <h2>{INSIDE.cells}</h2>
        <span class="hint moment">{moment}</span>
        <select aria-label={INSIDE.colour} value={by} onChange={(event) => setBy(event.currentTarget.value as Colour)}>
          <option value="owner">{INSIDE.byOwner}</option>
          <option value="age">{INSIDE.byAge}</option>
        </select>
      </div>
      {groups.map((group) => <Group group={group} by={by} />)}
      <figcaption>
        {by === "owner"
          ? (
            <span class="legend">
              {[...requests].sort((one, other) => one - other).slice(0, 8).map((request) => (
                <span class={`swatch request-swatch-${request % 8}`}>{INSIDE.request(request)}</span>
              ))}
              <span class="swatch shared-swatch">{INSIDE.shared}</span>
              <span class="swatch cached-swatch">{INSIDE.cached}</span>
              <span class="swatch empty-swatch">{INSIDE.empty}</span>
            </span>
          )
          : (
            <span class="legend">
              <span class="swatch accent-swatch">{INSIDE.newest}</span>
              <span class="swatch old-swatch">{INSIDE.oldest}</span>
              <span class="swatch empty-swatch">{INSIDE.empty}</span>
            </span>
          )}
      </figcaption>
    </figure>
  );
}

function Group({ group, by }: { group: CellUse; by: Colour }): JSX.Element {
  const { owners, ages } = group;
  const [columns, rows] = gridOf(owners.length);
  const draw = useCallback<Draw>((context, width, height, colors) => {
    context.clearRect(0, 0, width, height);
    const side = Math.min(width / columns, SIDE);
    const oldest = Math.max(1, ...ages);
    owners.forEach((owner, at) => {
      context.globalAlpha = 1;
      if (owner === EMPTY) context.fillStyle = colors("sunken");
      else if (by === "age") {
        context.fillStyle = colors("accent");
        if (owner === CACHED) context.globalAlpha = 0.8 - 0.6 * ((ages[at] ?? 0) / oldest);
      } else context.fillStyle = colors(owner === SHARED ? "ink" : owner === CACHED ? "faint" : hueOf(owner));
      context.fillRect((at % columns) * side, Math.floor(at / columns) * side, side - 1, side - 1);
    });
    context.globalAlpha = 1;
  }, [owners, ages, by]);
  const text = `${INSIDE.cellsOf(group.kind, group.window)}: ${INSIDE.inUse(group.in_use, group.cached, group.total)}`;
  return (
    <div class="cell-group">
      <p class="hint">{text}</p>
      <Canvas label={text} height={(width) => Math.ceil(rows * Math.min(width / columns, SIDE))} draw={draw} />
    </div>
  );
}

/** Return how many columns and rows so many cells take. */
function gridOf(cells: number): [number, number] {
  const columns = Math.min(Math.max(cells, 1), 64);
  return [columns, Math.ceil(cells / columns)];
}
