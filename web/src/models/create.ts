/** Models from files of this machine: each file is uploaded unless the server has it, then named. */

import { ApiError } from "../api/http.ts";
import type { Progress, Server } from "../api/server.ts";
import { TEXTS } from "../texts.ts";
import { digestOf } from "./digest.ts";

export interface NewModel {
  name: string;
  files: File[];
  /** The type to quantize the weights to; empty: as they are. */
  quantize: string;
  system: string;
}

/** Types to quantize to, the most bits first; the server knows more. */
export const QUANTIZATIONS = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"] as const;
const PACE_MS = 100; // between reports
const UNQUANTIZED = ["F32", "F16", "BF16"];

export function canQuantize(level: string): boolean {
  return UNQUANTIZED.includes(level);
}

/** How many characters a part of a name may have; the name of a file may have more. */
const LONGEST_PART = 80;

/** Return a model's name for a file: its own, without what names may not have. */
export function nameOfFile(file: string): string {
  const stem = file.replace(/\.gguf$/i, "").replace(/-\d{5}-of-\d{5}$/, "");
  return stem.toLowerCase().replaceAll(/[^a-z0-9_.-]+/g, "-").replace(/^[^a-z0-9]+/, "");
}

/** Return a name for a file that the server takes: those of browsers may have spaces and anything else. */
export function sentName(file: string): string {
  const [, stem = "", suffix = ""] = /^(.*?)(\.gguf)?$/is.exec(file) ?? [];
  return (stem.replaceAll(/[^A-Za-z0-9_.-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "") || "model") + suffix;
}

/** Return the name of a model that is quantized to a type, beside its own. */
export function nameOfQuantized(name: string, type: string): string {
  const [stem = "", tag = "latest"] = name.split(/:(?=[^/]*$)/);
  const parts = stem.split("/").map((part) => part.slice(0, LONGEST_PART));
  return `${parts.join("/")}:${tag === "latest" ? "" : `${tag}-`}${type.toLowerCase()}`;
}

/**
 * Create a model, and yield its steps with their progress.
 *
 * @throws ApiError before a file is read, if a model may not have the name.
 */
export async function* creation(
  server: Server,
  { name, files, quantize, system }: NewModel,
  signal: AbortSignal,
): AsyncGenerator<Progress, void, undefined> {
  const check = await server.checkName(name, signal);
  if (!check.valid) throw new ApiError(check.error ?? "", 400);
  const digests: Record<string, string> = {};
  for (const file of files) {
    const digest = yield* reported(TEXTS.reading(file.name), file.size, (report) => digestOf(file, signal, report));
    digests[sentName(file.name)] = `sha256:${digest}`;
    if (await server.hasBlob(digest, signal)) continue;
    yield* reported(TEXTS.uploading(file.name), file.size, (report) => server.upload(file, digest, signal, report));
  }
  const request = { model: name, files: digests, ...(quantize ? { quantize } : {}), ...(system ? { system } : {}) };
  yield* server.create(request, signal);
}

/** Yield the progress of work that reports how many bytes are done; return its result. */
async function* reported<T>(
  status: string,
  total: number,
  work: (report: (completed: number) => void) => Promise<T>,
): AsyncGenerator<Progress, T, undefined> {
  let completed = 0;
  let wake: () => void = () => undefined;
  let told = 0;
  const done = work((bytes) => {
    completed = bytes;
    const now = performance.now();
    if (now - told < PACE_MS) return;
    told = now;
    wake();
  });
  const ended = done.then(() => true, () => true);
  for (let isEnded = false; !isEnded; ) {
    yield { status, total, completed };
    isEnded = await Promise.race([ended, new Promise<boolean>((resolve) => (wake = () => resolve(false)))]);
  }
  return await done;
}
