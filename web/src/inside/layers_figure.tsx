/** The layers of a model while it writes; nothing is asked until somebody wants to see them. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { messageOf } from "../api/http.ts";
import { Told } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import { grouped, percent } from "../units.ts";
import { type LayersSeen, type SeenLayer, looks, settledAt, shownToken } from "./layers.ts";
import { INSIDE } from "./texts.ts";

export function LayersFigure({ model, isPaused }: { model: string; isPaused: boolean }): JSX.Element {
  const { server } = useApp();
  const [isOn, setOn] = useState(false);
  const [isWriting, setWriting] = useState(false);
  const [seen, setSeen] = useState<LayersSeen | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    setSeen(null);
    setOn(false);
    setError("");
  }, [model]);
  useEffect(() => {
    if (!isOn || isPaused) return undefined;
    const end = new AbortController();
    const watch = async () => {
      for await (const look of looks((signal) => server.liveLayers(model, signal), end.signal)) {
        setWriting(look.request > 0);
        if (look.request) setSeen(look);
      }
    };
    watch().catch((problem: unknown) => {
      if (end.signal.aborted) return;
      setError(messageOf(problem));
      setOn(false);
    });
    return () => end.abort();
  }, [isOn, isPaused, model, server]);
  const toggle = () => {
    setError("");
    setOn(!isOn);
  };
  return (
    <figure class="inside-figure wide layers-figure">
      <div class="figure-head">
        <h2>{INSIDE.layers.title}</h2>
        {isOn && seen && <span class="hint moment">{INSIDE.layers.took(seen.took_ms)}</span>}
        <button type="button" aria-pressed={isOn} onClick={toggle}>{isOn ? INSIDE.layers.stop : INSIDE.layers.watch}</button>
      </div>
      {error && <p class="notice" role="alert"><Told text={error} /></p>}
      {!seen && <p class="hint">{isOn ? INSIDE.layers.waiting : INSIDE.layers.about}</p>}
      {seen && <LayersTable seen={seen} />}
      {seen && (
        <figcaption>
          <span>{captionOf(seen, isOn && isWriting)}</span>
          <span class="legend">
            <span class="swatch accent-swatch">{INSIDE.layers.same}</span>
            <span class="swatch warm-swatch">{INSIDE.layers.other}</span>
            <span>{INSIDE.layers.strength}</span>
          </span>
        </figcaption>
      )}
    </figure>
  );
}

function captionOf(seen: LayersSeen, isWriting: boolean): string {
  const settled = settledAt(seen);
  return [
    ...(isWriting ? [] : [INSIDE.layers.ended]),
    INSIDE.layers.token(seen.request, seen.position, shownToken(seen.token)),
    ...(settled ? [INSIDE.layers.settled(settled.layer, shownToken(settled.tokens[0] ?? ""))] : []),
  ].join(" ");
}

function LayersTable({ seen }: { seen: LayersSeen }): JSX.Element {
  const { layers } = seen;
  const most = Math.max(...layers.map((one) => one.norm)) || 1;
  const last = layers.at(-1)?.tokens[0];
  const hasExperts = layers.some((one) => one.experts.length);
  return (
    <div class="layers-scroll" tabIndex={0} role="group" aria-label={INSIDE.layers.title}>
      <table class="layers-table">
        <thead>
          <tr>
            <th scope="col">{INSIDE.layers.layer}</th>
            <th scope="col">{INSIDE.layers.norm}</th>
            <th scope="col">{INSIDE.layers.next}</th>
            {hasExperts && <th scope="col">{INSIDE.layers.experts(seen.experts)}</th>}
          </tr>
        </thead>
        <tbody>
          {layers.map((one) => (
            <tr key={one.layer}>
              <th scope="row">{one.layer}</th>
              <td class="layer-norm">
                <span class="layer-bar" aria-hidden="true"><span style={{ width: `${(100 * one.norm) / most}%` }} /></span>
                <span>{normText(one.norm)}</span>
              </td>
              <td><Lens layer={one} last={last} /></td>
              {hasExperts && <td class="layer-experts">{one.experts.map((expert) => <span>{expert}</span>)}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Lens({ layer, last }: { layer: SeenLayer; last: string | undefined }): JSX.Element {
  return (
    <span class="lens">
      {layer.tokens.map((token, at) => {
        const probability = layer.probabilities[at] ?? 0;
        return (
          <span class={`lens-token ${token === last ? "is-last" : ""}`}>
            <span class="lens-mark" aria-hidden="true"><span style={{ opacity: 0.08 + 0.92 * probability }} /></span>
            <bdi class="token-name">{shownToken(token) || INSIDE.layers.nothing}</bdi>
            <span class="percent">{percent(probability)}</span>
          </span>
        );
      })}
    </span>
  );
}

function normText(norm: number): string {
  return norm < 100 ? norm.toPrecision(3) : grouped(Math.round(norm));
}
