/** A block of code, coloured as soon as the highlighter has been loaded, with a button that copies it. */

import type { ElementContent } from "hast";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { CopyButton } from "../parts/copy.tsx";
import { TEXTS } from "../texts.ts";
import type { highlight } from "./highlight.ts";
import { Later } from "./later.ts";

const highlighter = new Later(async () => (await import("./highlight.ts")).highlight);

const MOST = 50_000; // characters; colouring more takes longer than reading starts

interface Properties {
  text: string;
  language: string;
}

export function Code({ text, language }: Properties): JSX.Element {
  const colours = useHighlighter(language !== "" && text.length <= MOST);
  const tree = colours?.(text, language);
  return (
    <figure class="code" dir="ltr">
      <figcaption>
        <span>{language}</span>
        <CopyButton text={text} label={TEXTS.copyCode} />
      </figcaption>
      <pre tabIndex={0}><code>{tree ? tree.map(shown) : text}</code></pre>
    </figure>
  );
}

function useHighlighter(isWanted: boolean): typeof highlight | null {
  const [found, setFound] = useState(() => highlighter.now);
  useEffect(() => {
    if (isWanted && !found) void highlighter.load().then((loaded) => setFound(() => loaded));
  }, [isWanted]);
  return isWanted ? found : null;
}

function shown(node: ElementContent): ComponentChildren {
  if (node.type === "text") return node.value;
  if (node.type !== "element") return null;
  const names = node.properties.className;
  return <span class={Array.isArray(names) ? names.join(" ") : ""}>{node.children.map(shown)}</span>;
}
