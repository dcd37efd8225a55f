import assert from "node:assert/strict";
import { test } from "node:test";

import { type Token, doubt, entropy, isCovered, textOf, textWith, tokensOf } from "../src/chat/token_text.ts";

const token = (text: string, ...bytes: number[]): Token => ({ text, logprob: -1, top: [], ...(bytes.length ? { bytes } : {}) });
const LN2 = Math.LN2;

test("tokens keep their bytes only where they are no whole text", () => {
  const [one, two] = tokensOf([
    { token: "a", bytes: [97], logprob: -0.5, top_logprobs: [{ token: "b", bytes: [98], logprob: -2 }] },
    { token: "\uFFFD", bytes: [195], logprob: -1 },
  ]);
  assert.deepEqual(one, { text: "a", logprob: -0.5, top: [{ text: "b", logprob: -2 }] });
  assert.deepEqual(two, { text: "\uFFFD", logprob: -1, bytes: [195], top: [] });
});

test("characters of several tokens are joined, and half ones are no text", () => {
  assert.equal(textOf([token("x"), token("\uFFFD", 195), token("\uFFFD", 169)]), "xé");
  assert.equal(textOf([token("x"), token("\uFFFD", 195)]), null);
});

test("an answer goes on after its text up to a token, and the other token", () => {
  const answer = { content: "one two three", tokens: [token(" two"), token(" three")], tokensFrom: 3 };
  assert.equal(textWith(answer, 0, token(" 2")), "one 2");
  assert.equal(textWith(answer, 1, token(" 3")), "one two 3");
  assert.equal(textWith(answer, 1, token("")), "one two");
});

test("marks of reasoning before the text are not part of it", () => {
  const answer = { content: "Yes!", tokens: [token(""), token("\n"), token("Yes"), token("!")] };
  assert.equal(textWith(answer, 3, token("?")), "Yes?");
  assert.equal(textWith(answer, 0, token("")), null);
});

test("tokens that are not those of the text, or end inside a character, lead nowhere", () => {
  assert.equal(textWith({ content: "other", tokens: [token("text")] }, 0, token("x")), null);
  assert.equal(textWith({ content: "x", tokens: [token("x")] }, 0, token("\uFFFD", 195)), null);
});

test("tokens that end before the text are not continued", () => {
  assert.ok(isCovered({ content: "ab", tokens: [token("b")], tokensFrom: 1 }));
  assert.ok(!isCovered({ content: "abc", tokens: [token("b")], tokensFrom: 1 }));
  assert.ok(!isCovered({ content: "abc" }));
});

test("entropy is that of the server; without it, what is not listed bounds it", () => {
  const half = { text: "x", logprob: -LN2 };
  const [known] = tokensOf([{ token: "x", logprob: -1, entropy: 3 * LN2 }]).map(entropy);
  assert.deepEqual(known?.map(Math.round), [3, 3]);
  assert.ok(entropy({ ...half, top: [half, half] }).every((bits) => Math.abs(bits - 1) < 1e-9));
  const [least, most] = entropy({ ...half, top: [half] });
  assert.ok(Math.abs(least - 1) < 1e-9 && most > 9);
  assert.deepEqual(entropy({ ...half, top: [{ text: "x", logprob: 0 }] }), [0, 0]);
  assert.equal(doubt({ ...half, top: [{ text: "x", logprob: -9 }] }, "entropy"), 5);
});

test("doubt grows from certain to improbable", () => {
  const of = (probability: number) => doubt({ text: "x", logprob: Math.log(probability), top: [] }, "probability");
  assert.deepEqual([1, 0.8, 0.5, 0.3, 0.1, 0.01].map(of), [0, 1, 2, 3, 4, 5]);
});
