import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../src/api/http.ts";
import { sentence } from "../src/api/sentence.ts";

test("a message begins as a sentence", () => {
  assert.equal(sentence("cannot reach example.org: connection refused"), "Cannot reach example.org: connection refused");
  assert.equal(sentence("pulling manifest"), "Pulling manifest");
  assert.equal(sentence("success"), "Success");
  assert.equal(sentence("élan is missing"), "Élan is missing");
  assert.equal(new ApiError("the server is busy").message, "The server is busy");
});

test("a name stays as it is written", () => {
  for (const text of ["demo:latest takes no videos", "m.gguf is damaged", "num_ctx must be at least 1", "options: no", "`tampu` failed", "hf.co/a/b", ""]) {
    assert.equal(sentence(text), text);
  }
});
