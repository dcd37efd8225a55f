/** The day of the browser's clock. */

import { useEffect, useState } from "preact/hooks";

/** Return a time of today; what uses it is drawn again when the next day begins. */
export function useToday(): Date {
  const [today, setToday] = useState(() => new Date());
  useEffect(() => {
    const midnight = new Date(today.getFullYear(), today.getMonth(), today.getDate() + 1);
    const look = () => Date.now() >= midnight.getTime() && setToday(new Date());
    const timer = setTimeout(() => setToday(new Date()), midnight.getTime() - Date.now());
    addEventListener("focus", look); // a machine that slept was late
    return () => {
      clearTimeout(timer);
      removeEventListener("focus", look);
    };
  }, [today]);
  return today;
}
