import assert from "node:assert/strict";
import { test } from "node:test";

import { canQuantize, nameOfFile, nameOfQuantized, sentName } from "../src/models/create.ts";

test("a model is named after its file, without the number of a part", () => {
  assert.equal(nameOfFile("Tiny Singer.gguf"), "tiny-singer");
  assert.equal(nameOfFile("Qwen3-4B-Q4_K_M-00001-of-00003.GGUF"), "qwen3-4b-q4_k_m");
  assert.equal(nameOfFile("../<b>x</b>.gguf"), "b-x-b-");
});

test("names of files are sent as the server takes them", () => {
  assert.equal(sentName("Tiny Singer (1).gguf"), "Tiny-Singer-1-.gguf");
  assert.equal(sentName("<img src=x>.gguf"), "img-src-x-.gguf");
  assert.equal(sentName("projector"), "projector");
  assert.equal(sentName("模型.gguf"), "model.gguf");
});

test("a quantized model stands beside the one that it is made from", () => {
  assert.equal(nameOfQuantized("singer:latest", "Q8_0"), "singer:q8_0");
  assert.equal(nameOfQuantized(`${"a".repeat(90)}:latest`, "Q8_0"), `${"a".repeat(80)}:q8_0`);
  assert.equal(nameOfQuantized("host:5000/a/singer:4b", "Q8_0"), "host:5000/a/singer:4b-q8_0");
});

test("only weights that are not quantized are", () => {
  assert.ok(canQuantize("BF16"));
  assert.ok(!canQuantize("Q8_0"));
});
