import assert from "node:assert/strict";
import { test } from "node:test";

import { FormatError, problemOf, requestFormat, requestTools } from "../src/chat/formats.ts";

test("formats are sent in the forms of the API", () => {
  assert.equal(requestFormat({ kind: "none", text: "x" }), undefined);
  assert.equal(requestFormat({ kind: "json", text: "" }), "json");
  assert.deepEqual(requestFormat({ kind: "schema", text: '{"type":"object"}' }), { type: "object" });
  assert.deepEqual(requestFormat({ kind: "gbnf", text: 'root ::= "a"' }), { gbnf: 'root ::= "a"' });
});

test("schemas that are not objects, and empty grammars, are refused", () => {
  for (const text of ["", "{", "[]", "5", '"x"', "null"]) {
    assert.throws(() => requestFormat({ kind: "schema", text }), FormatError);
  }
  assert.throws(() => requestFormat({ kind: "regex", text: " " }), FormatError);
});

test("tools are functions, in a list or alone, with or without the form around them", () => {
  const wrapped = [{ type: "function", function: { name: "f" } }];
  for (const value of [wrapped, wrapped[0], [{ name: "f" }], { name: "f" }]) {
    assert.deepEqual(requestTools(JSON.stringify(value)), wrapped);
  }
  assert.equal(requestTools(" "), undefined);
  assert.equal(requestTools("[]"), undefined);
  for (const text of ["[5]", "{}", '{"name":""}', '{"type":"function"}', '{"name":"f","parameters":1}']) {
    assert.throws(() => requestTools(text), FormatError);
  }
});

test("a problem is told as text", () => {
  assert.equal(problemOf(() => 1), "");
  assert.match(problemOf(() => requestTools("[")), /JSON/);
});
