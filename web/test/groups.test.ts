import assert from "node:assert/strict";
import { test } from "node:test";

import { groupsOf } from "../src/chat/groups.ts";

const NOW = new Date(2026, 10, 28, 15, 30);

const titles = (language: string, now: Date, ...times: Date[]) =>
  groupsOf(times.map((time) => ({ updated: time.getTime() })), now, language).map(({ title, members }) => [title, members.length]);

test("conversations are grouped by days of the calendar, and earlier ones by months", () => {
  assert.deepEqual(
    titles(
      "en-US", NOW,
      new Date(2026, 10, 28, 23, 59), // later than the clock
      new Date(2026, 10, 28, 0, 0),
      new Date(2026, 10, 27, 23, 59),
      new Date(2026, 10, 26, 23, 59),
      new Date(2026, 10, 21, 0, 0),
      new Date(2026, 10, 20, 23, 59),
      new Date(2026, 9, 29, 0, 0),
      new Date(2026, 9, 28, 23, 59),
      new Date(2026, 9, 1),
      new Date(2026, 0, 1),
      new Date(2025, 10, 30),
      new Date(2024, 10, 30),
    ),
    [
      ["Today", 2], ["Yesterday", 1], ["Previous 7 days", 2], ["Previous 30 days", 2],
      ["October", 2], ["January", 1], ["November 2025", 1], ["November 2024", 1],
    ],
  );
});

test("a day has no fixed length: the calendar says when it began", () => {
  for (let day = 1; day <= 366; day++) {
    const now = new Date(2026, 0, day, 0, 1);
    assert.deepEqual(titles("en", now, new Date(2026, 0, day, 0, 0), new Date(2026, 0, day - 1, 23, 59), new Date(2026, 0, day - 2, 23, 59)), [
      ["Today", 1], ["Yesterday", 1], ["Previous 7 days", 1],
    ]);
  }
});

test("months are named in the browser's language", () => {
  const [group] = groupsOf([{ updated: new Date(2025, 2, 3).getTime() }], NOW, "de-DE");
  assert.equal(group?.title, "März 2025");
  assert.equal(group.language, "de-DE");
});

test("without conversations there are no groups", () => {
  assert.deepEqual(groupsOf([], NOW, "en"), []);
});
