/** The server's messages begin as Python's do; the page shows them as sentences. */

/** Return a message with a capital letter first, unless it begins with a name: of a field, a file or a model. */
export function sentence(message: string): string {
  return /^\p{Ll}+(?:['’-]\p{L}+)?(?=[ ,;]|$)/u.test(message) ? message.charAt(0).toUpperCase() + message.slice(1) : message;
}
