/** An image of a message, a sound that can be played, or a name for a video, which the page does not play. */

import type { JSX } from "preact";

import { videoType } from "../markdown/links.ts";
import { Icon } from "../parts/icons.tsx";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { isSound, sizeOf } from "./files.ts";

export function Media({ url, number, className }: { url: string; number: number; className?: string }): JSX.Element {
  if (isSound(url)) return <audio controls preload="metadata" src={url} aria-label={TEXTS.soundOf(number)} />;
  if (videoType(url) === null) return <img class={className} src={url} alt={TEXTS.imageOf(number)} />;
  return <span class="video"><Icon name="video" />{TEXTS.videoOf(bytes(sizeOf(url)))}</span>;
}
