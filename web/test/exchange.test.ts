import assert from "node:assert/strict";
import { test } from "node:test";

import { ImportError, fromJson, fromMarkdown, toJson, toMarkdown, withoutKnown } from "../src/chat/exchange.ts";
import {
  type Conversation, ROOT, type Turn, newConversation, shownTurns, withChoice, withTurn,
} from "../src/chat/tree.ts";

let count = 0;
const newId = () => `n${String(count++)}`;

function conversation(): Conversation {
  const common = { created: 5, state: "done" as const };
  const turns: Turn[] = [
    { ...common, id: "q", parent: ROOT, role: "user", content: "Hi", images: ["data:image/png;base64,QQ=="] },
    { ...common, id: "a", parent: "q", role: "assistant", content: "**x**\n<!-- user -->\nno", reasoning: "r" },
    { ...common, id: "b", parent: "q", role: "assistant", content: "other" },
  ];
  const made = turns.reduce(withTurn, { ...newConversation("c", 5, "demo"), system: "S", title: "T" });
  return withChoice(made, made.turns.a ?? assert.fail());
}

const contents = (from: Conversation | undefined) =>
  from ? shownTurns(from).map((turn) => [turn.role, turn.content]) : [];

test("JSON keeps branches, images and settings, under new ids", () => {
  const from = { ...conversation(), options: { temperature: 0.5, stop: ["x"] } };
  const [back] = fromJson(toJson([from]), newId);
  assert.ok(back);
  assert.deepEqual(contents(back), contents(from));
  assert.equal(Object.keys(back.turns).length, 3);
  assert.deepEqual(back.options, from.options);
  assert.deepEqual([back.title, back.system, back.model], ["T", "S", "demo"]);
  assert.deepEqual(shownTurns(back)[0]?.images, ["data:image/png;base64,QQ=="]);
  assert.ok(!(back.id in { c: 1 }) && !("q" in back.turns));
});

test("what is here already is not imported again", () => {
  const [old, other] = [conversation(), { ...conversation(), created: 6 }];
  const read = fromJson(toJson([old, other]), newId);
  assert.deepEqual(withoutKnown(read, [old]).map((one) => one.created), [6]);
  assert.equal(withoutKnown(read, [{ ...old, updated: old.updated + 1 }]).length, 2); // it went on
});

test("Markdown keeps what is shown, even where a message looks like a mark", () => {
  const from = conversation();
  const back = fromMarkdown(toMarkdown(from), newId, 7);
  assert.deepEqual(contents(back), contents(from));
  assert.deepEqual([back.title, back.system], ["T", "S"]);
});

test("files that are damaged or hostile are refused", () => {
  const bad = (change: object, turns: Record<string, object> = {}) => {
    const from = conversation();
    for (const [id, one] of Object.entries(turns)) Object.assign(from.turns[id] ?? {}, one);
    assert.throws(() => fromJson(toJson([{ ...from, ...change }]), newId), ImportError);
  };
  for (const text of ["", "{}", "[]", '{"format":"tampu-conversations"}', "null"]) {
    assert.throws(() => fromJson(text, newId), ImportError);
  }
  bad({}, { q: { parent: "a" } }); // a circle
  bad({}, { a: { parent: "nothing" } });
  bad({}, { q: { role: "system" } });
  bad({}, { q: { images: ["javascript:alert(1)"] } });
  bad({}, { q: { images: ["data:image/svg+xml;base64,QQ=="] } });
  bad({ options: { a: { b: 1 } } });
  bad({ system: 1 });
  assert.throws(() => fromMarkdown("# only a title", newId, 1), ImportError);
});
