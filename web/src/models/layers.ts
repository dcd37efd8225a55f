/** The tensors of a model as its layers, with what each consists of. */

import type { Tensor } from "../api/server.ts";

/** What a tensor belongs to, in the order in which a layer is drawn. */
export const PARTS = ["attention", "recurrent", "feedForward", "experts", "embeddings", "vision", "other"] as const;

export type Part = (typeof PARTS)[number];

export interface Layer {
  /** The number of the block; null: what is before or after all blocks. */
  number: number | null;
  /** In bytes. */
  size: number;
  sizes: Record<Part, number>;
  /** The bytes of each type, the most first. */
  types: [string, number][];
}

const BLOCK = /^blk\.(\d+)\./;
const OF_PART: [Part, RegExp][] = [
  ["vision", /^(?:v|mm)\./],
  ["embeddings", /^(?:token_embd|per_layer_token_embd|position_embd|token_types|output)\./],
  ["experts", /\.ffn_\w+_exps\b/],
  ["recurrent", /\.(?:ssm_|shortconv|time_mix)/],
  ["attention", /\.attn_(?!norm|post_norm)/],
  ["feedForward", /\.ffn_(?!norm|post_norm)/],
];

/** Return the blocks in their order, and first what is in none, if there is any. */
export function layersOf(tensors: readonly Tensor[]): Layer[] {
  const groups = new Map<number, Tensor[]>();
  for (const tensor of tensors) {
    const number = Number(BLOCK.exec(tensor.name)?.[1] ?? -1);
    groups.set(number, [...(groups.get(number) ?? []), tensor]);
  }
  return [...groups].sort(([one], [other]) => one - other).map(([number, group]) => layerOf(number < 0 ? null : number, group));
}

/** Return the bytes of each type, the most first. */
export function typesOf(tensors: readonly Tensor[]): [string, number][] {
  const sizes = new Map<string, number>();
  for (const { type, size } of tensors) sizes.set(type, (sizes.get(type) ?? 0) + size);
  return [...sizes].sort(([, one], [, other]) => other - one);
}

/** Return the parts of a layer that have weights. */
export function partsOf(layer: Layer): Part[] {
  return PARTS.filter((part) => layer.sizes[part] > 0);
}

function layerOf(number: number | null, tensors: Tensor[]): Layer {
  const sizes = Object.fromEntries(PARTS.map((part) => [part, 0])) as Layer["sizes"];
  for (const { name, size } of tensors) sizes[OF_PART.find(([, pattern]) => pattern.test(name))?.[0] ?? "other"] += size;
  const size = Object.values(sizes).reduce((all, one) => all + one, 0);
  return { number, size, sizes, types: typesOf(tensors) };
}
