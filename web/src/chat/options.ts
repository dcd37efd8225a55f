/** Parameters of a conversation as they are typed. */

import type { Parameter, Value } from "../api/server.ts";
import { TEXTS } from "../texts.ts";

/** Return the number that a text is, with a point or a comma; what is none stays, so that it can be told. */
export function numberIn(text: string): Value {
  const number = Number(text.trim().replace(",", "."));
  return Number.isFinite(number) ? number : text;
}

/** Return why a value cannot be sent; empty: it can. */
export function optionProblem({ name, type, low, high }: Parameter, value: Value | undefined): string {
  if (value === undefined || (type !== "int" && type !== "float")) return "";
  if (typeof value !== "number") return TEXTS.options.notNumber(name);
  if (type === "int" && !Number.isInteger(value)) return TEXTS.options.notWhole(name);
  if (low !== null && value < low) return TEXTS.options.low(name, low);
  return high !== null && value > high ? TEXTS.options.high(name, high) : "";
}

/** Return the first problem of some options; empty: there is none. */
export function optionsProblem(parameters: readonly Parameter[], options: Readonly<Record<string, Value>>): string {
  return parameters.map((one) => optionProblem(one, options[one.name])).find(Boolean) ?? "";
}
