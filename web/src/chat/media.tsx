/** An image of a message, a sound that can be played, or a name for a video, which the page does not play. */

import type { JSX } from "preact";

import { videoType } from "../markdown/links.ts";
import { Icon } from "../parts/icons.tsx";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { isSound, nameOf, sizeOf } from "./files.ts";

export function Media({ url, number, className }: { url: string; number: number; className?: string }): JSX.Element {
  const name = nameOf(url);
  if (isSound(url)) {
    return (
      <figure class="sound">
        <audio controls preload="metadata" src={url} aria-label={name || TEXTS.soundOf(number)} />
        {name && <figcaption>{name}</figcaption>}
      </figure>
    );
  }
  if (videoType(url) === null) return <img class={className} src={url} alt={name || TEXTS.imageOf(number)} title={name} />;
  return <span class="video"><Icon name="video" /><span>{TEXTS.videoOf(name, bytes(sizeOf(url)))}</span></span>;
}
