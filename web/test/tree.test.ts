import assert from "node:assert/strict";
import { test } from "node:test";

import {
  type Conversation, ROOT, type Turn, alternatives, changed, children, matches, messagesOf,
  newConversation, settled, shownTurns, titleOf, withChoice, withTurn,
} from "../src/chat/tree.ts";

function turn(id: string, parent: string, role: Turn["role"], content = id): Turn {
  return { id, parent, role, content, created: 1, state: "done" };
}

/** Two questions; the first was answered twice, the second edited once. */
function conversation(): Conversation {
  return [
    turn("q1", ROOT, "user"), turn("a1", "q1", "assistant"), turn("q2", "a1", "user"),
    turn("q2b", "a1", "user"), turn("a2b", "q2b", "assistant"), turn("a1b", "q1", "assistant"),
  ].reduce(withTurn, newConversation("c", 0));
}

const ids = (turns: Turn[]) => turns.map((one) => one.id);

function at(from: Conversation, id: string): Turn {
  const found = from.turns[id];
  assert.ok(found);
  return found;
}

test("the newest branch is shown", () => {
  assert.deepEqual(ids(shownTurns(conversation())), ["q1", "a1b"]);
});

test("one can go back to an older branch, which is as it was left", () => {
  const back = withChoice(conversation(), at(conversation(), "a1"));
  assert.deepEqual(ids(shownTurns(back)), ["q1", "a1", "q2b", "a2b"]);
  const other = withChoice(back, at(back, "q2"));
  assert.deepEqual(ids(shownTurns(other)), ["q1", "a1", "q2"]);
});

test("alternatives are in the order in which they were made", () => {
  const from = conversation();
  assert.deepEqual(ids(alternatives(from, at(from, "a1b"))), ["a1", "a1b"]);
  assert.deepEqual(ids(children(from).get("a1") ?? []), ["q2", "q2b"]);
});

test("a request has the system prompt and the turns of its branch", () => {
  const from = { ...conversation(), system: " Be brief. " };
  assert.deepEqual(messagesOf(from, "q2"), [
    { role: "system", content: "Be brief." },
    { role: "user", content: "q1" },
    { role: "assistant", content: "a1" },
    { role: "user", content: "q2" },
  ]);
});

test("a search finds what is shown of a call: its tool, its arguments and its result", () => {
  const call = { name: "get_weather", arguments: { city: "Lima", days: 3 } };
  const from = [
    turn("q", ROOT, "user"), { ...turn("a", "q", "assistant", ""), calls: [call], reasoning: "I must look" },
    { ...turn("r", "a", "tool", "18 degrees"), tool: "get_weather" },
  ].reduce(withTurn, newConversation("c", 0));
  for (const words of ["get_weather", "LIMA", '"days": 3', "degrees", "must look", "city 18"]) assert.ok(matches(from, words), words);
  assert.ok(!matches(from, "Quito"));
});

test("images are sent without the kind in front of them", () => {
  const from = changed(conversation(), "q1", { images: ["data:image/png;base64,QUJD"] });
  assert.deepEqual(messagesOf(from, "q1")[0]?.images, ["QUJD"]);
});

test("nothing is changed in place", () => {
  const from = conversation();
  const copy = structuredClone(from);
  withChoice(from, at(from, "a1"));
  changed(from, "a1", { content: "x" });
  withTurn(from, turn("q3", "a1b", "user"));
  assert.deepEqual(from, copy);
});

test("a conversation is named by its first line, and found by all words", () => {
  const from = changed(conversation(), "q1", { content: "Rome\nor Lima?" });
  assert.equal(titleOf(from), "Rome");
  assert.equal(titleOf({ ...from, title: "Cities" }), "Cities");
  const silent = withTurn(newConversation("s", 1), { ...turn("q", ROOT, "user", ""), images: ["data:audio/wav;name=a%20talk.wav;base64,QUJD"] });
  assert.equal(titleOf(silent), "a talk.wav");
  assert.ok(matches(from, "lima A2B"));
  assert.ok(!matches(from, "lima paris"));
});

test("an answer that was streamed when the page was closed is interrupted", () => {
  const from = changed(conversation(), "a1b", { state: "streaming" });
  assert.equal(settled(from).turns.a1b?.state, "interrupted");
});
