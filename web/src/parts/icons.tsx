/** Icons: strokes on a grid of 24; their buttons have the names. */

import type { JSX } from "preact";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  sidebar: "M4 5h16v14H4zM9.5 5v14",
  menu: "M4 7h16M4 12h16M4 17h16",
  sliders: "M4 7h8.5M17.5 7H20M15 9.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM4 17h2.5M11.5 17H20M9 19.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z",
  send: "M12 19V5m-6 6 6-6 6 6",
  stop: "M7 7h10v10H7z",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  video: "M3.5 6.5h12v11h-12zM15.5 10.5l5-3v9l-5-3",
  sound: "M4 9.5v5h4l5 4v-13l-5 4zM16.5 9a4.5 4.5 0 0 1 0 6M19 6.5a8 8 0 0 1 0 11",
  microphone: "M12 15a3 3 0 0 0 3-3V6a3 3 0 0 0-6 0v6a3 3 0 0 0 3 3zM5.5 11.5a6.5 6.5 0 0 0 13 0M12 18v3",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12.5 10 17l9-10",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
  again: "M20 12a8 8 0 1 1-2.5-5.8M20 3v5h-5",
  resume: "M8 5v14l11-7z",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  down: "M6 9.5l6 6 6-6",
  info: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5.5M12 7.5h.01",
  levels: "M7 4v8.5M7 17.5V20M9.5 15a2.5 2.5 0 1 0-5 0 2.5 2.5 0 0 0 5 0zM17 4v2.5M17 11.5V20M19.5 9a2.5 2.5 0 1 0-5 0 2.5 2.5 0 0 0 5 0z",
  braces: "M9 4H8a2 2 0 0 0-2 2v4a2 2 0 0 1-2 2 2 2 0 0 1 2 2v4a2 2 0 0 0 2 2h1M15 4h1a2 2 0 0 1 2 2v4a2 2 0 0 0 2 2 2 2 0 0 0-2 2v4a2 2 0 0 1-2 2h-1",
  code: "M8 7l-5 5 5 5M16 7l5 5-5 5",
  bulb: "M9.5 18h5M10.5 21h3M9.5 15.5a6 6 0 1 1 5 0V18h-5z",
  wrench: "M14.5 6.5a4 4 0 0 1 5-1l-2.7 2.7 2 2 2.7-2.7a4 4 0 0 1-5.5 5L8 20.5 4.5 17l7.5-7.5a4 4 0 0 1 2.5-3z",
  text: "M4 6h16M4 11h16M4 16h10",
  close: "M6 6l12 12M18 6 6 18",
  more: "M6 11.5a.5.5 0 1 0 0 1 .5.5 0 0 0 0-1zM12 11.5a.5.5 0 1 0 0 1 .5.5 0 0 0 0-1zM18 11.5a.5.5 0 1 0 0 1 .5.5 0 0 0 0-1z",
  gear: "M10.3 5.6L10.5 2.8L13.5 2.8L13.7 5.6L15.3 6.3L17.5 4.5L19.5 6.5L17.7 8.7L18.4 10.3L21.2 10.5L21.2 13.5L18.4 13.7L17.7 15.3L19.5 17.5L17.5 19.5L15.3 17.7L13.7 18.4L13.5 21.2L10.5 21.2L10.3 18.4L8.7 17.7L6.5 19.5L4.5 17.5L6.3 15.3L5.6 13.7L2.8 13.5L2.8 10.5L5.6 10.3L6.3 8.7L4.5 6.5L6.5 4.5L8.7 6.3zM12 15a3 3 0 1 0 0-6 3 3 0 0 0 0 6z",
  box: "M12 3 4 7.5v9L12 21l8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  tokens: "M4 6h7v5H4zM14 6h6v5h-6zM4 14h4v5H4zM11 14h9v5h-9z",
  columns: "M4 5h7v14H4zM14 5h6v14h-6z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
} as const;

export type IconName = keyof typeof PATHS;

/** The sign of tampu, which the browser's tab has too: a doorway as those of Inca houses. */
export function Sign(): JSX.Element {
  return (
    <svg class="sign" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" />
      <path d="M7.5 25 10.5 7h11l3 18h-5.2l-1.6-12.5h-3.4L12.7 25z" />
    </svg>
  );
}

export function Icon({ name }: { name: IconName }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
