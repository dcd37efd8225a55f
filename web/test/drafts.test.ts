import assert from "node:assert/strict";
import { test } from "node:test";

import { Drafts } from "../src/state/drafts.ts";

/** A browser's storage with room for so many characters. */
function storageOf(room: number): Storage {
  const all = new Map<string, string>();
  const put = (key: string, text: string) => {
    if (text.length > room) throw new Error("no room");
    all.set(key, text);
  };
  return { getItem: (key: string) => all.get(key) ?? null, setItem: put, removeItem: (key: string) => void all.delete(key) } as Storage;
}

test("texts outlive a reload, images do not", () => {
  const storage = storageOf(100);
  new Drafts(storage).put("a", { text: "Half", images: ["data:"] });
  assert.deepEqual(new Drafts(storage).find("a"), { text: "Half", images: [] });
  new Drafts(storage).put("a", { text: "", images: [] });
  assert.deepEqual(new Drafts(storage).find("a"), { text: "", images: [] });
});

test("a text without room in the browser is kept until a reload, and no older one comes back", () => {
  const storage = storageOf(4);
  const drafts = new Drafts(storage);
  drafts.put("", { text: "Half", images: [] });
  drafts.put("", { text: "Half of it", images: ["data:"] });
  assert.deepEqual(drafts.find(""), { text: "Half of it", images: ["data:"] });
  assert.deepEqual(new Drafts(storage).find(""), { text: "", images: [] });
});
