/** The digest by which the server knows a file. */

import { sha256 } from "@noble/hashes/sha2.js";

/**
 * Return the SHA-256 of a file in hexadecimal, reading it in parts: models are larger than memory.
 *
 * @param report called with the number of bytes that were read.
 */
export async function digestOf(file: Blob, signal: AbortSignal, report: (bytes: number) => void): Promise<string> {
  const hash = sha256.create();
  const reader = file.stream().getReader();
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    signal.throwIfAborted();
    if (done) break;
    hash.update(value);
    bytes += value.length;
    report(bytes);
  }
  return Array.from(hash.digest(), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
