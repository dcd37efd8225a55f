/** What the list of models says about one. */

import type { Model } from "../api/server.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";

/** Return how large a model is: its parameters, the type of its weights, its file. */
export function factsOf({ details, size }: Model): string[] {
  const { parameter_size } = details;
  return [parameter_size && TEXTS.parametersOf(parameter_size), details.quantization_level, bytes(size)].filter(Boolean);
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
