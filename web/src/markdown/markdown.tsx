/** Shows Markdown that a model has written. Its HTML is shown as text, its images as links. */

import { Component, type ComponentChildren, type JSX } from "preact";
import { useRef } from "preact/hooks";
import type { Tokens } from "marked";

import { useScrolling } from "../parts/scrolling.ts";
import { TEXTS } from "../texts.ts";
import { Code } from "./code.tsx";
import { safeAddress } from "./links.ts";
import { Formula } from "./formula.tsx";
import { type MarkdownToken, blocksOf, decoded, readMarkdown } from "./tokens.ts";

const DEEPEST = 60;

type Direction = "auto" | undefined;

interface Properties {
  text: string;
}

export class Markdown extends Component<Properties> {
  override shouldComponentUpdate(next: Properties): boolean {
    return next.text !== this.props.text;
  }

  override render({ text }: Properties): ComponentChildren {
    return <div class="markdown">{shownAll(readMarkdown(text), 0)}</div>;
  }
}

function shownAll(tokens: MarkdownToken[], depth: number): ComponentChildren {
  if (depth > DEEPEST) return tokens.map((token) => token.raw).join("");
  return tokens.map((token) => shown(token, depth + 1));
}

function shown(token: MarkdownToken, depth: number): ComponentChildren {
  const inner = () => shownAll(blocksOf("tokens" in token ? token.tokens : []), depth);
  // Each block has the direction of its first letter, with all that is in it.
  const dir = depth === 1 ? "auto" : undefined;
  switch (token.type) {
    case "space":
    case "def":
    case "checkbox":
      return null;
    case "paragraph":
      return <p dir={dir}>{inner()}</p>;
    case "heading":
      return heading(token.depth, dir, inner());
    case "blockquote":
      return <blockquote dir={dir}>{inner()}</blockquote>;
    case "hr":
      return <hr />;
    case "br":
      return <br />;
    case "strong":
      return <strong>{inner()}</strong>;
    case "em":
      return <em>{inner()}</em>;
    case "del":
      return <del>{inner()}</del>;
    case "codespan":
      return <code dir="ltr">{token.text}</code>;
    case "code":
      return <Code text={token.text} language={token.lang?.split(/\s/)[0] ?? ""} />;
    case "math":
      return <Formula text={token.text} display={token.display} />;
    case "list":
      return list(token, depth, dir);
    case "list_item":
      return item(token, depth);
    case "table":
      return table(token, depth, dir);
    case "link":
      return link(token.href, token.title, inner());
    case "image":
      return link(token.href, token.title, `${TEXTS.image}: ${decoded(token.text) || token.href}`);
    case "escape":
      return token.text;
    case "text":
      return token.tokens ? inner() : decoded(token.text);
    case "html":
      return token.block ? <p class="source" dir={dir}>{token.raw.trimEnd()}</p> : token.raw;
  }
}

function heading(level: number, dir: Direction, inner: ComponentChildren): JSX.Element {
  // Below the page's own headings.
  const Tag = `h${String(Math.min(level + 2, 6))}` as "h3";
  return <Tag dir={dir}>{inner}</Tag>;
}

function list(token: Tokens.List, depth: number, dir: Direction): JSX.Element {
  const items = token.items.map((one) => item(one, depth));
  return token.ordered ? <ol dir={dir} start={Number(token.start)}>{items}</ol> : <ul dir={dir}>{items}</ul>;
}

function item(token: Tokens.ListItem, depth: number): JSX.Element {
  const inner = shownAll(blocksOf(token.tokens), depth);
  if (!token.task) return <li>{inner}</li>;
  return (
    <li class="task">
      <input type="checkbox" checked={token.checked ?? false} disabled aria-label={token.text.slice(0, 80)} />
      <div>{inner}</div>
    </li>
  );
}

function table(token: Tokens.Table, depth: number, dir: Direction): JSX.Element {
  const cell = (one: Tokens.TableCell) => {
    const inner = shownAll(blocksOf(one.tokens), depth);
    const align = one.align ? `to-${one.align}` : "";
    return one.header ? <th class={align}>{inner}</th> : <td class={align}>{inner}</td>;
  };
  return (
    <WideTable dir={dir}>
      <thead><tr>{token.header.map(cell)}</tr></thead>
      <tbody>{token.rows.map((row) => <tr>{row.map(cell)}</tr>)}</tbody>
    </WideTable>
  );
}

function WideTable({ dir, children }: { dir: Direction; children: ComponentChildren }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  return (
    <div class="table" dir={dir} ref={place} {...useScrolling(place, TEXTS.table)}>
      <table>{children}</table>
    </div>
  );
}

function link(href: string, title: string | null | undefined, inner: ComponentChildren): JSX.Element {
  const address = safeAddress(decoded(href));
  if (address === null) return <span>{inner}</span>;
  return (
    <a href={address} title={title ?? address} target="_blank" rel="noopener noreferrer nofollow">
      {inner}
    </a>
  );
}
