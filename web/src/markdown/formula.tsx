/** A formula as MathML; until KaTeX has been loaded, and where it is wrong, as it was written. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Properties {
  text: string;
  display: boolean;
}

export function Formula({ text, display }: Properties): JSX.Element {
  const place = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    let isCurrent = true;
    void import("./katex.ts").then(({ renderFormula }) => {
      if (isCurrent && place.current) renderFormula(place.current, text, display);
    });
    return () => {
      isCurrent = false;
    };
  }, [text, display]);
  // Preact does not look into what KaTeX has put there: the key makes a new place for a new text.
  return <span class={display ? "formula display" : "formula"} key={text} ref={place}>{text}</span>;
}
