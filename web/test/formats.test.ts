import assert from "node:assert/strict";
import { test } from "node:test";

import { FormatError, problemOf, requestFormat, requestTools, toolUrls } from "../src/chat/formats.ts";

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

test("a tool's URL is not shown to the model", () => {
  const url = "http://127.0.0.1:8000/f";
  for (const value of [{ name: "f", url }, { type: "function", url, function: { name: "f" } }]) {
    assert.deepEqual(requestTools(JSON.stringify(value)), [{ type: "function", function: { name: "f" } }]);
    assert.deepEqual([...toolUrls(JSON.stringify(value))], [["f", url]]);
  }
  assert.deepEqual([...toolUrls('[{"name":"f"}]')], []);
  for (const wrong of ["javascript:alert(1)", "data:,x", "file:///etc/passwd", "weather", 5, {}]) {
    assert.throws(() => requestTools(JSON.stringify({ name: "f", url: wrong })), /URL of f/);
  }
});

test("a problem is told as text", () => {
  assert.equal(problemOf(() => 1), "");
  assert.match(problemOf(() => requestTools("[")), /JSON/);
});
