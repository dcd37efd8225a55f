/** Ascending numbers in short: 0-3, 7. */
export function ranges(numbers: readonly number[]): string {
  const starts = numbers.filter((n) => !numbers.includes(n - 1));
  const ends = numbers.filter((n) => !numbers.includes(n + 1));
  return starts.map((start, i) => (start === ends[i] ? String(start) : `${String(start)}-${String(ends[i])}`)).join(", ");
}
