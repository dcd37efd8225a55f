import assert from "node:assert/strict";
import { test } from "node:test";

import { StreamError, jsonLines } from "../src/api/lines.ts";

function streamOf(chunks: Uint8Array[], onCancel?: () => void): ReadableStream<Uint8Array> {
  const left = [...chunks];
  return new ReadableStream({
    pull(controller) {
      const chunk = left.shift();
      if (chunk) controller.enqueue(chunk);
      else controller.close();
    },
    cancel: () => onCancel?.(),
  });
}

async function read(...chunks: (string | Uint8Array)[]): Promise<unknown[]> {
  const bytes = chunks.map((one) => (typeof one === "string" ? new TextEncoder().encode(one) : one));
  const lines = [];
  for await (const line of jsonLines(streamOf(bytes))) lines.push(line);
  return lines;
}

test("each line is an object", async () => {
  assert.deepEqual(await read('{"a":1}\n{"a":2}\n'), [{ a: 1 }, { a: 2 }]);
});

test("lines and characters may be split anywhere", async () => {
  const bytes = new TextEncoder().encode('{"a":"é😀"}\n\r\n{"b":[1]}\n');
  for (let size = 1; size <= bytes.length; size++) {
    const chunks = [];
    for (let at = 0; at < bytes.length; at += size) chunks.push(bytes.slice(at, at + size));
    assert.deepEqual(await read(...chunks), [{ a: "é😀" }, { b: [1] }]);
  }
});

test("the last line needs no end, and empty lines are skipped", async () => {
  assert.deepEqual(await read('\n\n{"a":1}\n\n', '{"a":', "2}"), [{ a: 1 }, { a: 2 }]);
  assert.deepEqual(await read(), []);
});

test("a line comes before the response has ended", async () => {
  let close: (() => void) | undefined;
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      controller.enqueue(new TextEncoder().encode('{"a":1}\n{"a"'));
      close = () => controller.close();
    },
  });
  const lines = jsonLines(body);
  assert.deepEqual((await lines.next()).value, { a: 1 });
  close?.();
});

test("a line that is not an object is an error", async () => {
  for (const line of ["no", "[1]", "1", "null", '{"a":1', '{"a":1}{"a":2}']) {
    await assert.rejects(read(`${line}\n`), StreamError);
  }
});

test("leaving the loop cancels the response", async () => {
  let cancelled = false;
  const body = streamOf(
    [new TextEncoder().encode('{"a":1}\n{"a":2}\n'), new Uint8Array(1)],
    () => {
      cancelled = true;
    },
  );
  for await (const line of jsonLines(body)) {
    assert.deepEqual(line, { a: 1 });
    break;
  }
  assert.ok(cancelled);
});
