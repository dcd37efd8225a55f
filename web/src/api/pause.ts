/** Wait, at most until the signal. */
export function pause(ms: number, end: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (end.aborted) {
      resolve();
      return;
    }
    const timer = setTimeout(resolve, ms);
    end.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
