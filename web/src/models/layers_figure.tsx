/** The layers of a model: a row for each, as long as it is large, in the colours of its parts. */

import type { JSX } from "preact";

import type { Tensor } from "../api/server.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { type Layer, PARTS, layersOf, partsOf, typesOf } from "./layers.ts";

const ROW = 10;
const WIDTH = 300;

export function LayersFigure({ tensors }: { tensors: Tensor[] }): JSX.Element | null {
  const layers = layersOf(tensors);
  const blocks = layers.filter((layer) => layer.number !== null);
  if (!blocks.length) return null;
  const most = Math.max(...layers.map((layer) => layer.size));
  const all = layers.reduce((sum, layer) => sum + layer.size, 0);
  const used = PARTS.filter((part) => layers.some((layer) => layer.sizes[part]));
  const types = typesOf(tensors).map(([type, size]) => `${type} ${bytes(size)}`).join(", ");
  const text = TEXTS.layersText(blocks.length, tensors.length, bytes(all), types);
  return (
    <figure class="layers">
      <h3>{TEXTS.layers}</h3>
      <svg role="img" aria-label={text} viewBox={`0 0 ${String(WIDTH)} ${String(layers.length * ROW)}`} preserveAspectRatio="none" height={layers.length * ROW}>
        {layers.map((layer, row) => <Row key={layer.number} layer={layer} y={row * ROW} scale={WIDTH / most} />)}
      </svg>
      <ul class="legend">
        {used.map((part) => (
          <li class={`part-${part}`}>
            {TEXTS.parts[part]} {bytes(layers.reduce((sum, layer) => sum + layer.sizes[part], 0))}
          </li>
        ))}
      </ul>
      <figcaption class="hint">{text}</figcaption>
      <details>
        <summary>{TEXTS.asTable}</summary>
        <div class="layers-table" tabIndex={0} role="group" aria-label={TEXTS.layers}>
          <table>
            <thead><tr>{TEXTS.layerColumns.map((name) => <th scope="col">{name}</th>)}</tr></thead>
            <tbody>
              {layers.map((layer) => (
                <tr key={layer.number}>
                  <th scope="row">{layer.number ?? TEXTS.noLayer}</th>
                  <td>{partsTold(layer)}</td>
                  <td>{layer.types.map(([type, size]) => `${type} ${bytes(size)}`).join(", ")}</td>
                  <td>{bytes(layer.size)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </figure>
  );
}

function Row({ layer, y, scale }: { layer: Layer; y: number; scale: number }): JSX.Element {
  let x = 0;
  return (
    <g>
      <title>{`${layer.number === null ? TEXTS.outsideLayers : TEXTS.layer(layer.number)}: ${partsTold(layer)}`}</title>
      {partsOf(layer).map((part) => {
        const width = layer.sizes[part] * scale;
        x += width;
        return <rect class={`part-${part}`} x={x - width} y={y} width={width} height={ROW - 2} />;
      })}
    </g>
  );
}

function partsTold(layer: Layer): string {
  return partsOf(layer).map((part) => `${TEXTS.parts[part]} ${bytes(layer.sizes[part])}`).join(", ");
}
