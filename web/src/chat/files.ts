/** Files that are saved, and images, videos and sounds that are read. */

import { audioType, imageType, videoType } from "../markdown/links.ts";
import { TEXTS } from "../texts.ts";

/** Let the browser save a text as a file. */
export function saveFile(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}

/** Return what is left of a title as the name of a file. */
export function fileName(title: string, ending: string): string {
  const name = title.replaceAll(/[^\p{L}\p{N}_-]+/gu, " ").trim().slice(0, 60);
  return `${name || "conversation"}.${ending}`;
}

/** Whether files are dragged. */
export function hasFiles(event: DragEvent): boolean {
  return [...(event.dataTransfer?.items ?? [])].some((one) => one.kind === "file");
}

/** The largest file that a message takes, in bytes. */
export const MOST_BYTES = 32 * 1024 * 1024;

/** Return an image, a video or a sound as a data URL with the file's name; null if it is not of a kind that models read. */
export async function readMedia(file: File): Promise<string | null> {
  const url = await new Promise<string>((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error ?? new Error(TEXTS.unreadable));
    reader.readAsDataURL(file);
  });
  const named = withName(url, file.name);
  return isMedia(named) ? named : null;
}

/** Return a data URL with the name of a file as a parameter of its media type. */
export function withName(url: string, name: string): string {
  return name ? url.replace(/^data:[^;,]*/, `$&;name=${encodeURIComponent(name.toWellFormed())}`) : url;
}

/** Return the name of the file that a data URL was read from; empty: it is not known. */
export function nameOf(url: string): string {
  try {
    return decodeURIComponent(/^data:[^;,]*;name=([^;,]*)/.exec(url)?.[1] ?? "");
  } catch {
    return ""; // not written by `withName`
  }
}

/** Whether an image can be shown; of a video or a sound that is not known. */
export async function isWhole(file: File): Promise<boolean> {
  if (!file.type.startsWith("image/")) return true;
  try {
    (await createImageBitmap(file)).close();
    return true;
  } catch {
    return false;
  }
}

/** Whether something is an image, a video or a sound as a data URL, of a kind that models read. */
export function isMedia(value: unknown): value is string {
  return imageType(value) !== null || videoType(value) !== null || isSound(value);
}

/** Whether something is a sound as a data URL, of a kind that models read. */
export function isSound(value: unknown): boolean {
  return audioType(value) !== null;
}

/** Return why a model does not take some of these files; empty: it takes all of them. */
export function unfit(files: string[], model: string, can: { see: boolean; hear: boolean }): string {
  if (!can.hear && files.some(isSound)) return TEXTS.noHearing(model);
  return !can.see && files.some((file) => !isSound(file)) ? TEXTS.noVision(model) : "";
}

/** Return the size in bytes of a data URL's content. */
export function sizeOf(url: string): number {
  return Math.floor(((url.length - url.indexOf(",") - 1) * 3) / 4);
}
