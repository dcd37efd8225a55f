/** The images, videos and sounds that go with a message while it is written. */

import type { JSX } from "preact";
import { useRef } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { MOST_BYTES, isWhole, readMedia, unfit } from "./files.ts";
import { Media } from "./media.tsx";

const SEEN =
  "image/png,image/jpeg,image/webp,image/gif,image/bmp,video/mp4,video/webm,video/quicktime,video/x-matroska,video/x-msvideo";
const HEARD = "audio/wav,audio/mpeg,audio/flac,audio/ogg,audio/aac,audio/mp4,audio/webm,.wav,.mp3,.flac,.ogg,.opus,.aac,.m4a";

/** Return those of files that a message to a model takes, and why another one is none of them. */
export async function readAttachments(
  files: Iterable<File>,
  model: string,
  can: { see: boolean; hear: boolean },
): Promise<{ images: string[]; note: string }> {
  const images: string[] = [];
  let note = "";
  for (const file of files) {
    if (file.size > MOST_BYTES) {
      note = TEXTS.tooLarge(file.name, bytes(MOST_BYTES));
      continue;
    }
    const url = await readMedia(file);
    const misfit = url === null ? TEXTS.notMedia(file.name) : unfit([url], model, can);
    if (url === null || misfit) note = misfit;
    else if (!(await isWhole(file))) note = TEXTS.damaged(file.name);
    else images.push(url);
  }
  return { images, note };
}

/** Attachments that can be taken off. */
export function AttachmentList({ images, onChange }: { images: string[]; onChange: (images: string[]) => void }): JSX.Element | null {
  if (!images.length) return null;
  return (
    <ul class="images">
      {images.map((image, at) => (
        <li>
          <Media url={image} number={at + 1} />
          <IconButton icon="close" label={TEXTS.removeImage} onClick={() => onChange(images.filter((_, other) => other !== at))} />
        </li>
      ))}
    </ul>
  );
}

/** A button that asks for files of the kinds that a model takes. */
export function AttachButton({ can, onFiles }: { can: { see: boolean; hear: boolean }; onFiles: (files: File[]) => void }): JSX.Element {
  const label = TEXTS.attach(can.see, can.hear);
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <IconButton icon={can.see ? "image" : "sound"} label={label} onClick={() => input.current?.click()} />
      <input
        ref={input}
        type="file"
        hidden
        multiple
        accept={[can.see ? SEEN : "", can.hear ? HEARD : ""].filter(Boolean).join(",")}
        aria-label={label}
        onChange={(event) => {
          onFiles([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}
