import assert from "node:assert/strict";
import { test } from "node:test";

import { isMedia, nameOf, withName } from "../src/chat/files.ts";

const PNG = "data:image/png;base64,QUJD";

test("a data URL keeps the name of its file", () => {
  for (const name of ["a.png", "my photo; (1), 100 %.png", "naïve 图.png", "$&.png", "'!*~"]) {
    const url = withName(PNG, name);
    assert.ok(isMedia(url), url);
    assert.equal(nameOf(url), name);
    assert.equal(url.slice(url.indexOf(",")), ",QUJD");
  }
});

test("half of a character in a name is replaced", () => {
  assert.equal(nameOf(withName(PNG, "a\ud800.png")), "a\ufffd.png");
});

test("a file without a name has none", () => {
  assert.equal(withName(PNG, ""), PNG);
  assert.equal(nameOf(PNG), "");
  assert.equal(nameOf("data:image/png;name=%zz;base64,QUJD"), "");
});

test("only a name is taken as a parameter", () => {
  for (const url of ["data:image/png;name=<b>;base64,QUJD", "data:image/png;name=;base64,QUJD", "data:image/png;charset=utf-8;base64,QUJD"]) {
    assert.equal(isMedia(url), false);
  }
});
