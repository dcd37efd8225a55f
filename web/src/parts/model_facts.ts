/** What the list of models says about one. */

import type { Model } from "../api/server.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";

/** Return how large a model is: its parameters, the type of its weights, its file. */
export function factsOf({ details, size }: Model): string[] {
  const { parameter_size } = details;
  return [parameter_size && TEXTS.parametersOf(parameter_size), details.quantization_level, bytes(size)].filter(Boolean);
}

/** Return facts as one text; lines break between them only. */
export function listed(facts: readonly string[]): string {
  return facts.map((fact) => fact.replaceAll(" ", "\u00a0")).join(", ");
}

/** Return what a model can do, in words; another ability of the server's is its own word. */
export function abilitiesOf({ capabilities }: Pick<Model, "capabilities">): string[] {
  const words: Readonly<Record<string, string>> = TEXTS.abilities;
  return capabilities.map((one) => words[one] ?? one);
}

/** Whether all words of a search are in a model's name, family, size, type or abilities. */
export function hasWords(model: Model, words: string): boolean {
  const { name, details, capabilities } = model;
  const { family, parameter_size, quantization_level } = details;
  const text = [name, family, parameter_size, quantization_level, ...capabilities, ...abilitiesOf(model)].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Return the letter or digit by which a model is known: the first of its name without registry and owner. */
export function initialOf(name: string): string {
  const [, last = ""] = /([^/]*)$/.exec(name) ?? [];
  return (/[\p{L}\p{N}]/u.exec(last)?.[0] ?? "?").toUpperCase();
}

/** How many colours of families `style/marks.css` has. */
export const HUES = 8;

/** Return the index of a family's colour, the same for all its generations; null without a family. */
export function hueOf(family: string): number | null {
  const [letters] = /^[a-z]+/.exec(family.toLowerCase()) ?? [];
  if (!letters) return null;
  let hash = 0;
  for (const letter of letters) hash = (hash * 5 + letter.charCodeAt(0)) % 65_521; // 5: the usual families differ
  return hash % HUES;
}
