/** An image of a message, a sound that can be played, or a name for a video, which the page does not play. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { videoType } from "../markdown/links.ts";
import { Icon } from "../parts/icons.tsx";
import { TEXTS } from "../texts.ts";
import { bytes, clock } from "../units.ts";
import { isSound, nameOf, sizeOf } from "./files.ts";

export function Media({ url, number, className }: { url: string; number: number; className?: string }): JSX.Element {
  const name = nameOf(url);
  if (isSound(url)) return <Sound url={url} name={name || TEXTS.soundOf(number)} />;
  if (videoType(url) === null) return <img class={className} src={url} alt={name || TEXTS.imageOf(number)} title={name} />;
  return <span class="video"><Icon name="video" /><span>{TEXTS.videoOf(name, bytes(sizeOf(url)))}</span></span>;
}

/** A player under the name of a sound and its length, once that is known. */
function Sound({ url, name }: { url: string; name: string }): JSX.Element {
  const [seconds, setSeconds] = useState(NaN);
  return (
    <figure class="sound">
      <figcaption>
        <Icon name="sound" />
        <bdi title={name}>{name}</bdi>
        {Number.isFinite(seconds) && <span class="sound-length">{clock(Math.round(seconds))}</span>}
      </figcaption>
      <audio controls preload="metadata" src={url} aria-label={name} onDurationChange={({ currentTarget }) => setSeconds(currentTarget.duration)} />
    </figure>
  );
}
