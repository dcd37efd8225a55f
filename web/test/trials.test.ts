import assert from "node:assert/strict";
import { test } from "node:test";

import { abilitiesOf, hasWords } from "../src/parts/model_facts.ts";
import type { Model } from "../src/api/server.ts";
import { trialsOf } from "../src/chat/trials.ts";
import { requestFormat, requestTools } from "../src/chat/formats.ts";

const GEMMA: Model = {
  name: "gemma3:4b", size: 3e9, modified_at: "", digest: "", origin: "store", capabilities: ["completion", "vision"],
  details: { family: "gemma3", parameter_size: "4.3B", quantization_level: "Q4_K_M", context_length: 8192 },
};

const titles = (origin: string, ...capabilities: string[]) => trialsOf({ origin, capabilities }).map((trial) => trial.title);

test("a model is asked for what it can do, and each for three things", () => {
  assert.deepEqual(titles("store", "completion"), ["Explain something", "Write a program", "Fill in a JSON schema"]);
  assert.deepEqual(titles("store", "completion", "vision"), ["Describe a picture", "Explain something", "Write a program"]);
  assert.deepEqual(titles("store", "completion", "thinking", "tools", "vision"), ["Describe a picture", "Call a tool", "Explain something"]);
  assert.deepEqual(titles("store", "completion", "audio", "tools"), ["Transcribe a sound", "Call a tool", "Explain something"]);
});

test("a built-in model is asked for what it was trained for", () => {
  assert.deepEqual(titles("built in", "completion", "vision", "tools"), ["Add two numbers", "Describe a picture", "Fill in a JSON schema"]);
  assert.deepEqual(titles("built in", "completion", "audio"), ["Transcribe a sound"]);
});

test("what trials give a conversation can be sent", () => {
  const settings = [...trialsOf({ origin: "file", capabilities: [] }), ...trialsOf({ origin: "file", capabilities: ["tools"] })].flatMap((trial) => trial.settings ?? []);
  assert.equal(settings.length, 2);
  for (const one of settings) assert.ok("tools" in one ? requestTools(one.tools) : requestFormat(one.format));
});

test("a model is found by all words of its name, family, size, type and abilities", () => {
  for (const words of ["", "  ", "4B gemma", "q4_k", "vision", "sees images 4.3b"]) assert.ok(hasWords(GEMMA, words), words);
  for (const words of ["llama", "gemma tools"]) assert.ok(!hasWords(GEMMA, words), words);
});

test("an ability that has no word of the page's keeps the server's", () => {
  assert.deepEqual(abilitiesOf({ capabilities: ["vision", "telepathy"] }), ["sees images", "telepathy"]);
});
