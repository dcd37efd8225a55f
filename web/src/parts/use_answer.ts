/** What a view asks the server once. */

import { useEffect, useState } from "preact/hooks";

import { isUnreachable, messageOf } from "../api/http.ts";
import { useApp } from "../state/app.ts";

interface Answered<T> {
  found: T | null;
  error: string;
}

/** Ask again when `key` changes, and when a lost server is back; that it is lost is said elsewhere. */
export function useAnswer<T>(key: string, ask: () => Promise<T>): Answered<T> {
  const { models } = useApp();
  const [answered, setAnswered] = useState<Answered<T>>({ found: null, error: "" });
  const isKnown = models.error.value === "";
  useEffect(() => {
    if (!isKnown) return;
    let isOld = false;
    const put = (next: Answered<T>) => {
      if (!isOld) setAnswered(next);
    };
    ask().then(
      (found) => put({ found, error: "" }),
      (reason: unknown) => {
        if (isUnreachable(reason)) void models.refresh();
        else put({ found: null, error: messageOf(reason) });
      },
    );
    return () => {
      isOld = true;
    };
  }, [key, isKnown]);
  return answered;
}
