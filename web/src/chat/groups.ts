/** Conversations by the day on which they were changed last, in the browser's calendar. */

import { TEXTS } from "../texts.ts";

const DAY_MS = 86_400_000;

export interface Group<T> {
  title: string;
  /** The language of a title that is not one of the page's own texts. */
  language?: string;
  members: T[];
}

/**
 * Return conversations under Today, Yesterday, the previous 7 and 30 days, and months.
 *
 * @param all those that were changed last come first.
 * @param language in which months are named.
 */
export function groupsOf<T extends { updated: number }>(all: readonly T[], now: Date, language: string): Group<T>[] {
  const groups: Group<T>[] = [];
  for (const one of all) {
    const head = headOf(new Date(one.updated), now, language);
    const last = groups.at(-1);
    if (last?.title === head.title) last.members.push(one);
    else groups.push({ ...head, members: [one] });
  }
  return groups;
}

function headOf(time: Date, now: Date, language: string): Omit<Group<never>, "members"> {
  const days = dayOf(now) - dayOf(time);
  if (days < 1) return { title: TEXTS.days.today }; // or later: the clock may have been set back
  if (days < 2) return { title: TEXTS.days.yesterday };
  if (days <= 7) return { title: TEXTS.days.week };
  if (days <= 30) return { title: TEXTS.days.month };
  const year = time.getFullYear() === now.getFullYear() ? {} : ({ year: "numeric" } as const);
  return { title: time.toLocaleDateString(language, { month: "long", ...year }), language };
}

/** Return the number of a day: all days have as many milliseconds in UTC, where no clock is changed. */
function dayOf(time: Date): number {
  return Date.UTC(time.getFullYear(), time.getMonth(), time.getDate()) / DAY_MS;
}
