import assert from "node:assert/strict";
import { test } from "node:test";

import type { Server } from "../src/api/server.ts";
import { MAX_ROUNDS, areSentAlone, resultsOf, urlsOf } from "../src/chat/tool_calls.ts";
import { type Conversation, ROOT, type Turn, newConversation, withTurn } from "../src/chat/tree.ts";

const URL_OF_F = "http://127.0.0.1:8000/f";
const TOOLS = JSON.stringify([{ name: "f", url: URL_OF_F }, { name: "g" }]);

function turn(id: string, parent: string, role: Turn["role"], ...names: string[]): Turn {
  const calls = names.map((name) => ({ name, arguments: {} }));
  return { id, parent, role, content: "", created: 1, state: "done", ...(names.length ? { calls } : {}) };
}

function conversation(...turns: Turn[]): Conversation {
  return turns.reduce(withTurn, { ...newConversation("c", 0), tools: TOOLS });
}

test("the URL of a call is that of its tool", () => {
  const called = turn("a", ROOT, "assistant", "f", "g", "h");
  assert.deepEqual(urlsOf(conversation(called), called), [URL_OF_F, "", ""]);
  assert.deepEqual(urlsOf({ ...conversation(called), tools: "[{" }, called), ["", "", ""]);
});

test("calls are sent without a click if all have a URL that is allowed", () => {
  const question = turn("q", ROOT, "user");
  const alone = (allowed: boolean, ...names: string[]) => {
    const called = turn("a", "q", "assistant", ...names);
    return areSentAlone(conversation(question, called), called, (url) => allowed && url === URL_OF_F);
  };
  assert.equal(alone(true, "f", "f"), true);
  assert.equal(alone(false, "f"), false);
  assert.equal(alone(true, "f", "g"), false);
  assert.equal(alone(true), false);
});

test("calls without an end need a click", () => {
  const turns = [turn("q", ROOT, "user")];
  const sent: boolean[] = [];
  for (let round = 0; round <= MAX_ROUNDS; round++) {
    const called = turn(`a${String(round)}`, turns.at(-1)?.id ?? ROOT, "assistant", "f");
    turns.push(called);
    sent.push(areSentAlone(conversation(...turns), called, () => true));
    turns.push(turn(`r${String(round)}`, turns.at(-1)?.id ?? ROOT, "tool"));
  }
  assert.deepEqual(sent, [...Array<boolean>(MAX_ROUNDS).fill(true), false]);
});

test("what is given by hand is not asked for", async () => {
  const asked: string[] = [];
  const server = {
    callTool: (url: string, name: string) => {
      asked.push(`${name} at ${url}`);
      return Promise.resolve("answered");
    },
  } as unknown as Server;
  const calls = ["f", "f", "g"].map((name) => ({ name, arguments: {} }));
  const results = await resultsOf(server, calls, [URL_OF_F, URL_OF_F, ""], ["", "by hand", ""], new AbortController().signal);
  assert.deepEqual(results, ["answered", "by hand", ""]);
  assert.deepEqual(asked, [`f at ${URL_OF_F}`]);
});
