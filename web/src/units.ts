/** Numbers, sizes and times in words. */

/** Return a number with its thousands set apart. */
export function grouped(number: number): string {
  return decimal(number, 0);
}

/** Return a number with its noun. */
export function count(number: number, noun: string, nouns = `${noun}s`): string {
  return `${grouped(number)} ${number === 1 ? noun : nouns}`;
}

/** Return a number with this many decimals; there is no "-0". */
export function decimal(number: number, digits: number): string {
  const text = number.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return text.replace(/^-(?=[0.]*$)/, "");
}

/** Return a probability in percent. */
export function percent(probability: number): string {
  const value = 100 * probability;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value.toFixed(value > 99.9 && value < 99.995 ? 2 : 1)} %`;
}

/** Return bytes in the unit that fits. */
export function bytes(count: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${value < 10 && unit ? value.toFixed(1) : value.toFixed(0)} ${units[unit] ?? ""}`;
}

/** Return a time since 1970 as of a clock: of today, else with its day. */
export function moment(ms: number): string {
  const time = new Date(ms);
  const isToday = time.toDateString() === new Date().toDateString();
  const day: Intl.DateTimeFormatOptions = isToday ? {} : { day: "numeric", month: "short", year: "numeric" };
  return time.toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Return milliseconds in the unit that fits. */
export function duration(ms: number): string {
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min${seconds % 60 ? ` ${seconds % 60} s` : ""}` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Return seconds as a clock shows them. */
export function clock(seconds: number): string {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}
