/** Ids of conversations and turns. */

/** Return a new id of 128 random bits; `crypto.randomUUID` is missing where the page comes over plain HTTP. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
