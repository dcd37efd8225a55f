/** Views whose code is loaded when they are first shown. */

import type { FunctionComponent, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { messageOf } from "../api/http.ts";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { ErrorText } from "./told.tsx";
import { ViewHead } from "./view_head.tsx";

/** Return a component that loads another one, and shows it; until then, and if it cannot, its title. */
export function lazy(title: string, load: () => Promise<FunctionComponent>): FunctionComponent {
  return function Lazy(): JSX.Element {
    const { models } = useApp();
    const wasLost = useRef(false);
    const [View, setView] = useState<FunctionComponent | null>(null);
    const [error, setError] = useState("");
    useEffect(() => {
      load().then((view) => setView(() => view), (reason: unknown) => {
        setError(messageOf(reason));
        void models.refresh(); // again and again, if the server is lost
      });
    }, []);
    useEffect(() => {
      if (!error) return;
      if (models.error.value) wasLost.current = true;
      else if (wasLost.current) location.reload(); // a browser asks for a file once
    }, [error, models.error.value]);
    if (View) return <View />;
    return (
      <main>
        <ViewHead title={title} />
        {error && (
          <div class="not-loaded">
            <ErrorText text={TEXTS.notLoaded} />
            <p class="hint">{error}</p>
            <button type="button" onClick={() => location.reload()}>{TEXTS.reload}</button>
          </div>
        )}
      </main>
    );
  };
}
