import assert from "node:assert/strict";
import { test } from "node:test";

import type { Tensor } from "../src/api/server.ts";
import { layersOf, partsOf, typesOf } from "../src/models/layers.ts";

function tensor(name: string, size: number, type = "Q4_K"): Tensor {
  return { name, type, shape: [1], size };
}

const tensors = [
  tensor("token_embd.weight", 1000, "Q8_0"),
  tensor("blk.10.attn_q.weight", 20),
  tensor("blk.10.attn_norm.weight", 1, "F32"),
  tensor("blk.2.ssm_in.weight", 30),
  tensor("blk.2.ffn_gate_exps.weight", 300),
  tensor("blk.2.ffn_gate_shexp.weight", 4),
  tensor("blk.2.ffn_norm.weight", 2, "F32"),
];

test("layers are in their order, after what is in none", () => {
  assert.deepEqual(layersOf(tensors).map(({ number, size }) => [number, size]), [[null, 1000], [2, 336], [10, 21]]);
  assert.deepEqual(layersOf([]), []);
});

test("a layer has parts, and norms are none of them", () => {
  const [, second, tenth] = layersOf(tensors);
  assert.ok(second && tenth);
  assert.deepEqual(partsOf(second), ["recurrent", "feedForward", "experts", "other"]);
  assert.deepEqual(second.sizes, { attention: 0, recurrent: 30, feedForward: 4, experts: 300, embeddings: 0, vision: 0, other: 2 });
  assert.deepEqual(partsOf(tenth), ["attention", "other"]);
  assert.deepEqual(second.types, [["Q4_K", 334], ["F32", 2]]);
});

test("what is in no layer are embeddings, a vision encoder, and norms", () => {
  const [outside] = layersOf([
    tensor("token_embd.weight", 100), tensor("output.weight", 50), tensor("v.blk.0.attn_q.weight", 7), tensor("mm.0.weight", 3),
    tensor("output_norm.weight", 1), tensor("blk.0.attn_output.weight", 9),
  ]);
  assert.ok(outside);
  assert.deepEqual([outside.number, outside.size], [null, 161]);
  assert.deepEqual(partsOf(outside).map((part) => [part, outside.sizes[part]]), [["embeddings", 150], ["vision", 10], ["other", 1]]);
});

test("types are counted in bytes, the most first", () => {
  assert.deepEqual(typesOf(tensors), [["Q8_0", 1000], ["Q4_K", 354], ["F32", 3]]);
});
