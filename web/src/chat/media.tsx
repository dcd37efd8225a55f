/** An image of a message, or a name for a video: the page plays none, so that its policy stays strict. */

import type { JSX } from "preact";

import { videoType } from "../markdown/links.ts";
import { Icon } from "../parts/icons.tsx";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { sizeOf } from "./files.ts";

export function Media({ url, number, className }: { url: string; number: number; className?: string }): JSX.Element {
  if (videoType(url) === null) return <img class={className} src={url} alt={TEXTS.imageOf(number)} />;
  return <span class="video"><Icon name="video" />{TEXTS.videoOf(bytes(sizeOf(url)))}</span>;
}
