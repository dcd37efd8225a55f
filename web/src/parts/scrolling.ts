/** Keyboard access for content that scrolls sideways; content that fits is not in the tab order. */

import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

interface Attributes {
  role?: "region";
  "aria-label"?: string;
  tabIndex?: 0;
}

/** Return the attributes of an element that scrolls sideways, while it does; with another `key` it is another element. */
export function useScrolling(place: RefObject<HTMLElement | null>, label: string, key = ""): Attributes {
  const [isScrolling, setScrolling] = useState(false);
  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setScrolling(element.scrollWidth > element.clientWidth));
    observer.observe(element);
    for (const inner of element.children) observer.observe(inner);
    return () => observer.disconnect();
  }, [key]);
  return isScrolling ? { role: "region", "aria-label": label, tabIndex: 0 } : {};
}
