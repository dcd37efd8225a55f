/** Where a model in memory is: what each device has of it, and why. */

import type { JSX } from "preact";

import { sentence } from "../api/sentence.ts";
import type { DeviceShare, LoadedModel } from "../api/server.ts";
import { Told } from "../parts/told.tsx";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { ranges } from "./ranges.ts";

/** Nothing without a GPU: then all is on the CPU. */
export function Placement({ loaded }: { loaded: LoadedModel }): JSX.Element | null {
  const { devices, placement } = loaded;
  if (!placement || !devices?.length) return null;
  return (
    <details class="placement">
      <summary><Told text={sentence(placement)} /></summary>
      <table>
        <thead><tr>{TEXTS.placementColumns.map((name) => <th scope="col">{name}</th>)}</tr></thead>
        <tbody>
          {devices.map((share) => (
            <tr>
              <th scope="row">{share.name}</th>
              <td>{ranges(share.layers)}</td>
              <td>{bytes(share.weights)}</td>
              <td>{bytes(share.cache)}</td>
              <td>{bytes(share.graphs)}</td>
              <td>{others(share).join(", ")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

function others(share: DeviceShare): string[] {
  const experts = share.experts.length ? [TEXTS.expertsOf(ranges(share.experts))] : [];
  return share.has_embedding ? [...experts, TEXTS.tokenEmbeddings] : experts;
}
