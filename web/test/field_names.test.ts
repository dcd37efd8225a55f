import assert from "node:assert/strict";
import { test } from "node:test";

import type { ChatRequest } from "../src/api/server.ts";
import { worded } from "../src/chat/field_names.ts";

const request: Pick<ChatRequest, "messages" | "tools"> = {
  messages: [{ role: "system", content: "" }, { role: "user", content: "" }, { role: "assistant", content: "" }],
  tools: [{ type: "function", function: { name: "get_weather" } }, { type: "function" }],
};
const files = [[], ["speech.wav", ""], []];
const told = (message: string) => worded(message, request, files);

test("a file is called by its name, wherever the message has its place", () => {
  assert.equal(told("messages[1].images[0]: demo takes no videos, only images"), "speech.wav: demo takes no videos, only images");
  assert.equal(told("invalid base64 in messages[1].images[0]"), "invalid base64 in speech.wav");
  assert.equal(told("messages[1].images[1]: the image is empty"), "File 2: the image is empty");
  assert.equal(told("messages[7].images[2]: the image is empty"), "File 3: the image is empty");
});

test("messages are counted without the system prompt", () => {
  assert.equal(told("messages[0].content is too long"), "The system prompt, content is too long");
  assert.equal(told("messages[2]: it is empty"), "Message 2: it is empty");
  assert.equal(worded("the role of messages[0] is wrong", { messages: [{ role: "user", content: "" }] }, []), "the role of message 1 is wrong");
});

test("a tool is called by its name", () => {
  assert.equal(told("tools[0]: properties.city: no such type"), "The tool get_weather: properties.city: no such type");
  assert.equal(told("tools[0].function.parameters must be an object"), "The tool get_weather, parameters must be an object");
  assert.equal(told("tools[1]: its name is that of tools[0]"), "The tool 2: its name is that of the tool get_weather");
});

test("the format, the parameters and the tools have the page's names", () => {
  assert.equal(told("format: unknown type"), "Output format: unknown type");
  assert.equal(told("options: engine cannot be set"), "Parameters: engine cannot be set");
  assert.equal(told("tools: at most 128"), "Tools: at most 128");
  assert.equal(told("think: it must be a boolean"), "Reasoning: it must be a boolean");
});

test("other messages stay as they are", () => {
  for (const message of ["The server is busy", "format is a word", "m.gguf is damaged", "files of messages", "images[0] is not a path"]) {
    assert.equal(told(message), message);
  }
});
