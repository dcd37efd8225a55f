/** What `GET /api/live/layers` tells: what each layer makes of the token that is being written. */

import { pause } from "../api/pause.ts";

export interface SeenLayer {
  layer: number;
  norm: number;
  /** The likeliest next tokens if the model ended after the layer, the likeliest first. */
  tokens: string[];
  probabilities: number[];
  /** The experts that its router chose, the first one first. */
  experts: number[];
}

export interface LayersSeen {
  /** The number of the request; 0: none writes an answer. */
  request: number;
  position: number;
  token: string;
  /** How many experts each layer has. */
  experts: number;
  layers: SeenLayer[];
  took_ms: number;
}

/** Return the first layer from which on the likeliest token is that of the last layer; null: there are no layers. */
export function settledAt({ layers }: LayersSeen): SeenLayer | null {
  const last = layers.at(-1)?.tokens[0];
  const other = layers.findLastIndex((one) => one.tokens[0] !== last);
  return layers[other + 1] ?? null;
}

/** Return a token as it is shown: white space is seen. */
export function shownToken(text: string): string {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}

const AGAIN_MS = 1000;

/** Yield looks until the signal ends it; a stream that was cut is opened again, what the server refuses is thrown. */
export async function* looks(
  open: (end: AbortSignal) => AsyncIterable<Record<string, unknown>>,
  end: AbortSignal,
): AsyncGenerator<LayersSeen, void, undefined> {
  while (!end.aborted) {
    for await (const event of open(end)) yield event as unknown as LayersSeen;
    await pause(AGAIN_MS, end);
  }
}
