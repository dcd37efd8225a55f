/** A canvas that is drawn anew when it, its size, or the theme changes; its content is told in words. */

import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { useApp } from "../state/app.ts";

export type Colors = (name: string) => string;
export type Draw = (context: CanvasRenderingContext2D, width: number, height: number, colors: Colors) => void;

interface Properties {
  label: string;
  height: number | ((width: number) => number);
  draw: Draw;
  onKeyDown?: (event: KeyboardEvent) => void;
}

export function Canvas({ label, draw, onKeyDown, ...given }: Properties): JSX.Element {
  const place = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const height = typeof given.height === "number" ? given.height : given.height(width);
  const { theme } = useApp().settings;
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(media.matches);
    media.addEventListener("change", change);
    const observer = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    if (place.current) observer.observe(place.current);
    return () => {
      media.removeEventListener("change", change);
      observer.disconnect();
    };
  }, []);
  const colors = useRef(new Map<string, string>());
  useLayoutEffect(() => colors.current.clear(), [theme.value, dark]);
  useLayoutEffect(() => {
    const { current: canvas } = place;
    const context = canvas?.getContext("2d");
    if (!canvas || !context || !width) return;
    const scale = devicePixelRatio;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const colorOf = (name: string) => {
      const known = colors.current.get(name) ?? resolved(canvas, name);
      colors.current.set(name, known);
      return known;
    };
    draw(context, width, height, colorOf);
  }, [draw, width, height, theme.value, dark]);
  return (
    <canvas
      ref={place}
      role="img"
      aria-label={label}
      style={{ height: `${height}px` }}
      {...(onKeyDown ? { tabIndex: 0, onKeyDown } : {})}
    />
  );
}

/** Return the color that a custom property has in this theme. */
function resolved(canvas: HTMLCanvasElement, name: string): string {
  canvas.style.color = `var(--${name})`;
  const color = getComputedStyle(canvas).color;
  canvas.style.color = "";
  return color;
}

/** Return the name of the color of a request. */
export function hueOf(request: number): string {
  return `hue-${request % 8}`;
}
