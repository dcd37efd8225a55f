import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { HUES, hueOf, initialOf } from "../src/parts/model_facts.ts";

const CSS = readFileSync(new URL("../src/style/marks.css", import.meta.url), "utf8");
const COLOURS = /\.mark-(\d+) \{ --mark: light-dark\((#\w{6}), (#\w{6})\); --mark-ink: light-dark\((#\w{6}), (#\w{6})\); \}/g;
const LEAST_CONTRAST = 4.5; // WCAG 2.2, AA

/** Return the relative luminance of WCAG of a colour such as #1d5f56. */
function luminance(colour: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const value = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one: string, other: string): number {
  const [low = 0, high = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

test("each colour of a family has enough contrast, in light and in dark", () => {
  const found = [...CSS.matchAll(COLOURS)].map(([, ...parts]) => parts);
  assert.deepEqual(found.map(([number]) => Number(number)), Array.from({ length: HUES }, (_, at) => at));
  for (const [number, light = "", dark = "", lightInk = "", darkInk = ""] of found) {
    assert.ok(contrast(light, lightInk) >= LEAST_CONTRAST, `mark-${String(number)}, light`);
    assert.ok(contrast(dark, darkInk) >= LEAST_CONTRAST, `mark-${String(number)}, dark`);
  }
});

test("a mark is the initial of the model, not of its registry or owner", () => {
  assert.deepEqual(["demo:latest", "hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M", "ünder", "_7b", "a/b/", ""].map(initialOf), ["D", "Q", "Ü", "7", "?", "?"]);
});

test("the generations of a family have one colour, and usual families have different ones", () => {
  assert.equal(hueOf("gemma3"), hueOf("gemma4"));
  assert.equal(hueOf("qwen35moe"), hueOf("Qwen2"));
  const usual = ["llama", "gemma3", "qwen3", "mistral3", "phi3", "deepseek2", "glm4"].map(hueOf);
  assert.equal(new Set(usual).size, usual.length);
  assert.ok(usual.every((hue) => hue !== null && hue >= 0 && hue < HUES));
});

test("what has no family has no colour", () => {
  assert.deepEqual(["", "7"].map(hueOf), [null, null]);
});
