/** Draws formulas; loaded when the first one is shown. */

import katex from "katex";

export function renderFormula(place: HTMLElement, text: string, display: boolean): void {
  const drawn = document.createElement("span");
  try {
    katex.render(text, drawn, {
      output: "mathml", // needs no fonts, and no styles in attributes
      displayMode: display,
      throwOnError: true,
      trust: false,
      strict: false,
      maxExpand: 200,
      maxSize: 20,
    });
  } catch {
    return; // The text stays as it was written.
  }
  place.replaceChildren(drawn);
}
