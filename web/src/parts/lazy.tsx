/** A view that is loaded when it is opened. */

import type { ComponentType, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { messageOf } from "../api/http.ts";

type Loaded = Promise<{ default: ComponentType }>;

export function Lazy({ load }: { load: () => Loaded }): JSX.Element {
  const [view, setView] = useState<{ View: ComponentType } | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    load().then((found) => setView({ View: found.default }), (reason: unknown) => setError(messageOf(reason)));
  }, [load]);
  if (view) return <view.View />;
  return <main>{error && <p class="notice" role="alert">{error}</p>}</main>;
}
