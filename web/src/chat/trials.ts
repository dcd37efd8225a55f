/** What a model can be asked for a start, by what it can do. */

import type { Model } from "../api/server.ts";
import type { IconName } from "../parts/icons.tsx";
import { TEXTS } from "../texts.ts";
import type { Conversation } from "./tree.ts";

export interface Trial {
  icon: IconName;
  title: string;
  message: string;
  /** Whether it is asked about the picture that the page draws. */
  hasPicture?: boolean;
  /** Whether it begins with a file that is chosen: nothing is sent yet. */
  needsFile?: boolean;
  /** What the conversation gets for it. */
  settings?: Pick<Conversation, "format"> | Pick<Conversation, "tools">;
}

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
  required: ["name", "age", "city"],
};
const WEATHER = [
  { name: "get_weather", description: TEXTS.trials.weather, parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
];
const { sum, picture, sound, tool, puzzle, json, code, explain } = TEXTS.trials;
const SUM: Trial = { ...sum, icon: "plus" };
const EXPLAIN: Trial = { ...explain, icon: "text" };
const CODE: Trial = { ...code, icon: "code" };
const PICTURE: Trial = { ...picture, icon: "image", hasPicture: true };
const SOUND: Trial = { ...sound, icon: "sound", needsFile: true };
const JSON_OBJECT: Trial = { ...json, icon: "braces", settings: { format: { kind: "schema", text: JSON.stringify(PERSON, null, 1) } } };

/** What needs an ability, the most telling first. */
const ABLE: readonly [capability: string, trial: Trial][] = [
  ["audio", SOUND],
  ["vision", PICTURE],
  ["tools", { ...tool, icon: "wrench", settings: { tools: JSON.stringify(WEATHER, null, 1) } }],
  ["thinking", { ...puzzle, icon: "bulb" }],
];
const SHOWN = 3;
const MOST_ABLE = 2; // the others are what every model is asked

/** Return up to three trials of which a model is capable. */
export function trialsOf({ origin, capabilities }: Pick<Model, "origin" | "capabilities">): Trial[] {
  // The built-in models were trained for such tasks alone.
  if (origin === "built in") return capabilities.includes("audio") ? [SOUND] : [SUM, PICTURE, JSON_OBJECT];
  const able = ABLE.filter(([capability]) => capabilities.includes(capability)).map(([, trial]) => trial);
  return [...able.slice(0, MOST_ABLE), EXPLAIN, CODE, JSON_OBJECT].slice(0, SHOWN);
}

const SIDE = 192;

/** Draw a red circle, which says nothing about the user; return it as a data URL. */
export function drawnPicture(): string {
  const canvas = document.createElement("canvas");
  canvas.width = SIDE;
  canvas.height = SIDE;
  const context = canvas.getContext("2d");
  if (!context) return "";
  context.fillStyle = "#f4f1ea";
  context.fillRect(0, 0, SIDE, SIDE);
  context.fillStyle = "#d62828";
  context.beginPath();
  context.arc(SIDE / 2, SIDE / 2, SIDE / 8, 0, 2 * Math.PI);
  context.fill();
  return canvas.toDataURL("image/png");
}
