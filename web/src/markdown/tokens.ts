/** Markdown as a tree of tokens; no HTML is made from it anywhere. */

import { Marked, type MarkedToken, type Token, type TokenizerAndRendererExtension } from "marked";

export interface MathToken {
  type: "math";
  raw: string;
  text: string;
  display: boolean;
}

export type MarkdownToken = MarkedToken | MathToken;

// A formula ends in the paragraph in which it begins. A dollar sign before a space or a digit after
// it is money.
const BLOCK = /^(?:\$\$((?:[^$\n]|\n(?!\n))+)\$\$|\\\[((?:[^\\\n]|\\(?!\])|\n(?!\n))+)\\\])(?:\n|$)/;
const INLINE =
  /^(?:\$\$([^$\n]+)\$\$|\$(?!\s)([^$\n]*[^$\s\\])\$(?!\d)|\\\(((?:[^\\\n]|\\(?!\)))+)\\\)|\\\[((?:[^\\\n]|\\(?!\]))+)\\\])/;

function math(level: "block" | "inline", pattern: RegExp): TokenizerAndRendererExtension {
  return {
    name: "math",
    level,
    start: (source) => {
      // A block begins at the start of a line, which may be inside a paragraph.
      const at = level === "block" ? source.search(/\n(?:\$\$|\\\[)/) + 1 : source.search(/\$|\\[([]/);
      return at < (level === "block" ? 1 : 0) ? undefined : at;
    },
    tokenizer: (source): MathToken | undefined => {
      const found = pattern.exec(source);
      if (!found) return undefined;
      const [raw, ...texts] = found;
      const display = level === "block" || raw.startsWith("$$") || raw.startsWith("\\[");
      return { type: "math", raw, text: texts.find((text) => text) ?? "", display };
    },
  };
}

const reader = new Marked({ gfm: true, breaks: false });
reader.use({ extensions: [math("block", BLOCK)] }, { extensions: [math("inline", INLINE)] });

const NAMED: Readonly<Record<string, string>> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…",
  mdash: "—", ndash: "–", times: "×", deg: "°", rarr: "→", larr: "←",
};

/** Return the blocks of a text; a text that is too deep for the reader is one block of itself. */
export function readMarkdown(text: string): MarkdownToken[] {
  try {
    return blocksOf(reader.lexer(text));
  } catch {
    return [{ type: "text", raw: text, text }];
  }
}

/** Return tokens with their types; extensions make no others than math. */
export function blocksOf(tokens: Token[] | undefined): MarkdownToken[] {
  return (tokens ?? []) as MarkdownToken[];
}

/** Return a text with its character references resolved. */
export function decoded(text: string): string {
  return text.replaceAll(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]+));/g, (whole, ...found) => {
    const [decimal, hexadecimal, name] = found as (string | undefined)[];
    if (name) return NAMED[name] ?? whole;
    const code = decimal ? Number(decimal) : Number.parseInt(hexadecimal ?? "", 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
  });
}
