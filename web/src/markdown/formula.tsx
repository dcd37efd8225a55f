/** A formula as MathML; until KaTeX has been loaded, and where it is wrong, as it was written. */

import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

import { useScrolling } from "../parts/scrolling.ts";
import { TEXTS } from "../texts.ts";
import { Later } from "./later.ts";

const katex = new Later(() => import("./katex.ts"));

interface Properties {
  text: string;
  display: boolean;
}

export function Formula({ text, display }: Properties): JSX.Element {
  const place = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => {
    let isCurrent = true;
    const draw = ({ renderFormula }: NonNullable<typeof katex.now>) => {
      if (isCurrent && place.current) renderFormula(place.current, text, display);
    };
    if (katex.now) draw(katex.now);
    else void katex.load().then(draw);
    return () => {
      isCurrent = false;
    };
  }, [text, display]);
  const scrolling = useScrolling(place, TEXTS.formula, text);
  // Preact does not look into what KaTeX has put there: the key makes a new place for a new text.
  return <span class={display ? "formula display" : "formula"} dir="ltr" key={text} ref={place} {...scrolling}>{text}</span>;
}
