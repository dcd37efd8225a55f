/** Where a popover goes. */

const EDGE = 4; // pixels between it and the edge of the screen

/** Put a popover under an element, or above it where there is no room below. */
function putUnder(popover: HTMLElement, anchor: Element): void {
  const rect = anchor.getClientRects()[0];
  if (!rect) return;
  const { offsetWidth, offsetHeight } = popover;
  const isBelow = rect.bottom + offsetHeight < innerHeight || rect.top < offsetHeight;
  popover.style.left = `${Math.max(EDGE, Math.min(rect.left, innerWidth - offsetWidth - EDGE))}px`;
  popover.style.top = `${isBelow ? rect.bottom : rect.top - offsetHeight}px`;
}

/** Keep a popover there while the page scrolls or changes its size; return what ends that. */
export function keepUnder(popover: HTMLElement, anchor: Element): () => void {
  const move = () => putUnder(popover, anchor);
  move();
  const observer = new ResizeObserver(move);
  observer.observe(popover);
  addEventListener("scroll", move, true);
  addEventListener("resize", move);
  return () => {
    observer.disconnect();
    removeEventListener("scroll", move, true);
    removeEventListener("resize", move);
  };
}
