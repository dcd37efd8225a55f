import assert from "node:assert/strict";
import { test } from "node:test";

import { decoded, readMarkdown } from "../src/markdown/tokens.ts";

const types = (text: string) => readMarkdown(text).map((token) => token.type);

function inline(text: string): string[] {
  const [paragraph] = readMarkdown(text);
  assert.ok(paragraph && "tokens" in paragraph && paragraph.tokens);
  return paragraph.tokens.map((token) => (token.type === "math" ? `math:${String(token.text)}` : token.type));
}

test("blocks are read", () => {
  assert.deepEqual(
    types("# a\n\nb\n\n- c\n\n```js\nd\n```\n\n|a|b|\n|-|-|\n|c|d|\n\n> e\n").filter((one) => one !== "space"),
    ["heading", "paragraph", "list", "code", "table", "blockquote"],
  );
});

test("formulas are read in both notations, and money is not one", () => {
  assert.deepEqual(inline("a $x^2$ b"), ["text", "math:x^2", "text"]);
  assert.deepEqual(inline("a \\(x\\) b"), ["text", "math:x", "text"]);
  assert.deepEqual(inline("$5 and $10"), ["text"]);
  assert.deepEqual(inline("`$x$`"), ["codespan"]);
  assert.deepEqual(types("$$\nx\n$$"), ["math"]);
  assert.deepEqual(types("\\[\nx \\\\ y\n\\]"), ["math"]);
});

test("a text as deep as a stack is still shown", () => {
  for (const text of [">".repeat(100_000), "*".repeat(50_000) + "a", "[".repeat(20_000)]) {
    assert.ok(readMarkdown(text).map((token) => token.raw).join("").length > 0);
  }
});

test("character references are resolved once", () => {
  assert.equal(decoded("&lt;b&gt; &amp;lt; &#65;&#x42; &nothing; &#0; &#xFFFFFF;"), "<b> &lt; AB &nothing; \ufffd \ufffd");
});
