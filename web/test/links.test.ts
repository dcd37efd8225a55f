import assert from "node:assert/strict";
import { test } from "node:test";

import { imageType, safeAddress, videoType } from "../src/markdown/links.ts";

test("links lead to other sites, and do nothing else", () => {
  assert.equal(safeAddress("https://example.org/a b"), "https://example.org/a%20b");
  assert.equal(safeAddress("mailto:a@example.org"), "mailto:a@example.org");
  for (const text of [
    "javascript:alert(1)", " JaVaScRiPt:alert(1)", "java\nscript:alert(1)", "\u0001javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>", "vbscript:x", "file:///etc/passwd", "blob:http://x/1",
    "/api/delete", "#/models", "//example.org", "", "http://", "filesystem:http://x/", "about:blank",
  ]) {
    assert.equal(safeAddress(text), null, text);
  }
});

test("images are data of the kinds that models read", () => {
  assert.equal(imageType("data:image/png;base64,QUJD"), "png");
  for (const text of [
    "data:image/svg+xml;base64,QUJD", "data:text/html;base64,QUJD", "https://example.org/a.png",
    "data:image/png;base64,", "data:image/png,QUJD", "data:image/png;base64,QQ==<", null, 1,
  ]) {
    assert.equal(imageType(text), null);
  }
});

test("videos are data of the kinds that the server reads", () => {
  assert.equal(videoType("data:video/mp4;base64,QUJD"), "mp4");
  assert.equal(videoType("data:video/quicktime;base64,QUJD"), "quicktime");
  for (const text of ["data:image/png;base64,QUJD", "data:video/mp4,abc", "https://example.org/a.mp4", 5]) {
    assert.equal(videoType(text), null);
  }
});
