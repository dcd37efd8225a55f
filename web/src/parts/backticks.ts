/** The server's messages mark names of commands, options and files with backticks. */

export interface Span {
  text: string;
  isCode: boolean;
}

/** Return a message as what is code and what is not; a backtick without another one stays. */
export function backticks(message: string): Span[] {
  return message
    .split(/(`[^`\n]+`)/)
    .filter(Boolean)
    .map((part) => (/^`[^`\n]+`$/.test(part) ? { text: part.slice(1, -1), isCode: true } : { text: part, isCode: false }));
}
