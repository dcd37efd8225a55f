/** Which addresses and images in texts the page uses. */

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
// `name` is that of the file, as encodeURIComponent writes it.
const VIDEO = /^data:video\/(mp4|webm|quicktime|x-matroska|matroska|x-msvideo|avi|vnd\.avi)(?:;name=[\w.!~*'()%-]+)?;base64,[A-Za-z0-9+/]+={0,2}$/;
const AUDIO =
  /^data:audio\/(wav|wave|x-wav|vnd\.wave|mpeg|mp3|flac|x-flac|ogg|opus|aac|mp4|x-m4a|m4a|webm)(?:;name=[\w.!~*'()%-]+)?;base64,[A-Za-z0-9+/]+={0,2}$/;
const IMAGE = /^data:image\/(png|jpeg|webp|gif|bmp)(?:;name=[\w.!~*'()%-]+)?;base64,[A-Za-z0-9+/]+={0,2}$/;

/** Return the address of a link that is safe to follow; null: it stays text. */
export function safeAddress(text: string): string | null {
  let url: URL;
  try {
    url = new URL(text.trim());
  } catch {
    return null; // also relative addresses: they would lead to this server
  }
  return SCHEMES.has(url.protocol) ? url.href : null;
}

/** Return the kind of an image that is a data URL, such as `png`; null: it is not one. */
export function imageType(value: unknown): string | null {
  return typeof value === "string" ? (IMAGE.exec(value)?.[1] ?? null) : null;
}

/** Return the kind of a sound that is a data URL, such as `wav`; null: it is not one. */
export function audioType(value: unknown): string | null {
  return typeof value === "string" ? (AUDIO.exec(value)?.[1] ?? null) : null;
}

/** Return the kind of a video that is a data URL, such as `mp4`; null: it is not one. */
export function videoType(value: unknown): string | null {
  return typeof value === "string" ? (VIDEO.exec(value)?.[1] ?? null) : null;
}
