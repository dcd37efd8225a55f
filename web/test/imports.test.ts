import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { test } from "node:test";

const SOURCES = join(import.meta.dirname, "../src");

/** The files that a file imports, those of types alone too. */
function imports(file: string): string[] {
  const found = readFileSync(file, "utf8").matchAll(/(?:\bfrom|^import) "(\.[^"]+)"/gm);
  return [...found].map(([, path = ""]) => resolve(dirname(file), path));
}

function circles(files: string[]): string[] {
  const done = new Set<string>();
  const found: string[] = [];
  const walk = (file: string, path: string[]) => {
    if (path.includes(file)) {
      const circle = [...path.slice(path.indexOf(file)), file];
      found.push(circle.map((one) => relative(SOURCES, one)).join(" → "));
    } else if (!done.has(file)) {
      if (/\.tsx?$/.test(file)) for (const next of imports(file)) walk(next, [...path, file]);
      done.add(file);
    }
  };
  for (const file of files) walk(file, []);
  return found;
}

test("no file imports itself by way of others", () => {
  const files = readdirSync(SOURCES, { recursive: true, encoding: "utf8" }).filter((name) => /\.tsx?$/.test(name));
  assert.ok(files.length > 50);
  assert.deepEqual(circles(files.map((name) => join(SOURCES, name))), []);
});
