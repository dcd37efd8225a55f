/** A button that copies a text. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { TEXTS } from "../texts.ts";
import { IconButton } from "./button.tsx";

const SHOWN_MS = 1500;

export function CopyButton({ text, label }: { text: string; label: string }): JSX.Element {
  const [isCopied, setCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return;
    const timer = setTimeout(() => setCopied(false), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [isCopied]);
  const copy = () => void copied(text).then(() => setCopied(true));
  return <IconButton icon={isCopied ? "check" : "copy"} label={isCopied ? TEXTS.copied : label} onClick={copy} />;
}

/** Copy a text. Over plain HTTP from another machine browsers have no clipboard but a selection. */
async function copied(text: string): Promise<void> {
  if (window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "off-screen";
  document.body.append(area);
  area.select();
  document.execCommand("copy"); // eslint-disable-line @typescript-eslint/no-deprecated
  area.remove();
}
