/** Views whose code is loaded when they are first shown. */

import type { FunctionComponent, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { messageOf } from "../api/http.ts";
import { TEXTS } from "../texts.ts";

/** Return a component that loads another one, and shows it. */
export function lazy(load: () => Promise<FunctionComponent>): FunctionComponent {
  return function Lazy(): JSX.Element {
    const [View, setView] = useState<FunctionComponent | null>(null);
    const [error, setError] = useState("");
    useEffect(() => {
      load().then((view) => setView(() => view), (reason: unknown) => setError(messageOf(reason)));
    }, []);
    if (View) return <View />;
    return <main>{error && <p class="error" role="alert">{TEXTS.notLoaded} ({error})</p>}</main>;
  };
}
