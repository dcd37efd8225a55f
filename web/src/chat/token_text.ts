/** The tokens of an answer with their log-probabilities, and the text before each of them. */

import type { LogprobLine } from "../api/server.ts";

/** A token that was possible: its text is empty for control tokens, such as the end of an answer. */
export interface Candidate {
  text: string;
  /** Natural logarithm of its probability. */
  logprob: number;
  /** Its UTF-8, if that is not a whole text. */
  bytes?: number[];
}

export interface Token extends Candidate {
  /** The likeliest tokens in its place, the likeliest first. */
  top: Candidate[];
  /** Of the whole distribution in its place, in nats, if it is known. */
  entropy?: number;
}

/** Return the tokens of a line of an answer. */
export function tokensOf(entries: readonly LogprobLine[]): Token[] {
  return entries.map((entry) => ({
    ...candidate(entry),
    top: (entry.top_logprobs ?? []).map(candidate),
    ...(entry.entropy === undefined ? {} : { entropy: entry.entropy }),
  }));
}

function candidate({ token, logprob, bytes = [] }: LogprobLine): Candidate {
  return token.includes("\uFFFD") ? { text: token, logprob, bytes } : { text: token, logprob };
}

/** Return the text of tokens; null if it ends inside a character. */
export function textOf(tokens: readonly Candidate[]): string | null {
  const encoder = new TextEncoder();
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  try {
    const parts = tokens.map(({ text, bytes }) => (bytes ? Uint8Array.from(bytes) : encoder.encode(text)));
    return parts.map((part) => decoder.decode(part, { stream: true })).join("") + decoder.decode();
  } catch {
    return null;
  }
}

interface Answer {
  content: string;
  tokens?: Token[];
  /** How many characters of the content come before the first token. */
  tokensFrom?: number;
}

/**
 * Return an answer's text up to one of its tokens, with another token in that place.
 *
 * Null: the text would end inside a character, or the tokens are not those of the text: a model's
 * marks around reasoning and calls, and spaces beside them, are tokens but no text.
 */
export function textWith(answer: Answer, at: number, other: Candidate): string | null {
  const { content, tokens = [], tokensFrom = 0 } = answer;
  const whole = textOf(tokens);
  const part = textOf([...tokens.slice(0, at), other]);
  if (whole === null || part === null) return null;
  const shown = content.slice(tokensFrom);
  const skipped = whole.indexOf(shown);
  if (skipped < 0 || part.length < skipped) return null;
  return content.slice(0, tokensFrom) + part.slice(skipped);
}

/** Whether the tokens of an answer reach to its end, so that more can follow them. */
export function isCovered({ content, tokens = [], tokensFrom = 0 }: Answer): boolean {
  return tokens.length > 0 && textOf(tokens)?.endsWith(content.slice(tokensFrom)) === true;
}

/** The bits that are at most added if a token that is not listed is one of this many. */
const MAX_VOCABULARY_BITS = 18;

/**
 * Return the least and the most that the entropy of a token's place can be, in bits.
 *
 * Both are the entropy where it is known. Else all tokens that are not listed count as one, or as
 * many equal ones.
 */
export function entropy({ top, entropy }: Token): [number, number] {
  if (entropy !== undefined) return [entropy / Math.LN2, entropy / Math.LN2];
  const known = top.map(({ logprob }) => Math.exp(logprob));
  const rest = Math.max(1 - known.reduce((sum, part) => sum + part, 0), 0);
  const least = [...known, rest].reduce((sum, part) => (part > 0 ? sum - part * Math.log2(part) : sum), 0);
  return [least, least + rest * MAX_VOCABULARY_BITS];
}

export type Colour = "probability" | "entropy";

/** How unsure a token was, from 0 (certain) to 5. */
export function doubt(token: Token, colour: Colour): number {
  const value = colour === "entropy" ? entropy(token)[1] : -token.logprob / Math.LN2; // bits
  return [0.15, 0.6, 1.3, 2.3, 4].filter((limit) => value > limit).length;
}
