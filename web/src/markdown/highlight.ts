/** Colours code; loaded when the first block of code is shown. */

import type { ElementContent } from "hast";
import { common, createLowlight } from "lowlight";

const lowlight = createLowlight(common);

/** Return the parts of a code, or null for a language that is not known. */
export function highlight(text: string, language: string): ElementContent[] | null {
  const name = language.toLowerCase();
  if (!lowlight.registered(name)) return null;
  return lowlight.highlight(name, text).children as ElementContent[];
}
