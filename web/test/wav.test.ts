import assert from "node:assert/strict";
import { test } from "node:test";

import { RATE, wavOf } from "../src/chat/wav.ts";

test("a WAV file has its samples behind a head that says how many there are", () => {
  const file = new DataView(wavOf(new Float32Array([0, 1, -1, 2])));
  const text = (at: number) => String.fromCharCode(...[0, 1, 2, 3].map((index) => file.getUint8(at + index)));
  assert.deepEqual([0, 8, 12, 36].map(text), ["RIFF", "WAVE", "fmt ", "data"]);
  assert.equal(file.getUint32(24, true), RATE);
  assert.equal(file.getUint32(4, true), file.byteLength - 8);
  assert.equal(file.getUint32(40, true), 8);
  assert.deepEqual([44, 46, 48, 50].map((at) => file.getInt16(at, true)), [0, 32767, -32767, 32767]);
});
