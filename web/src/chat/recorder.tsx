/** Records with the microphone, and shows how loud it is meanwhile. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { TEXTS } from "../texts.ts";
import { clock } from "../units.ts";
import { asWav } from "./wav.ts";

const MOST_SECONDS = 600;
const FLOOR_DB = -60;

interface Recording {
  seconds: number;
  /** 0 is silence, 1 the loudest. */
  level: number;
}

interface Properties {
  onSound: (sound: File) => void;
  onProblem: (text: string) => void;
}

/** A button that records, and while it does, the time, the level and a button that stops. */
export function RecordButton({ onSound, onProblem }: Properties): JSX.Element | null {
  const [recording, setRecording] = useState<Recording | null>(null);
  const stop = useRef<() => void>(() => undefined);
  const leave = useRef(new AbortController());
  useEffect(() => () => leave.current.abort(), []);
  // Browsers offer microphones to pages of this machine and of HTTPS only.
  if (!isSecureContext) return null;

  const start = async () => {
    onProblem("");
    try {
      const sound = await record(leave.current.signal, setRecording, (end) => (stop.current = end));
      if (sound === null) onProblem(TEXTS.silentRecording);
      else if (!leave.current.signal.aborted) onSound(sound);
    } catch (error) {
      onProblem(TEXTS.noMicrophone(error instanceof Error ? error.message : String(error)));
    }
    setRecording(null);
  };
  if (recording === null) return <IconButton icon="microphone" label={TEXTS.record} onClick={() => void start()} />;
  return (
    <span class="recording">
      <IconButton icon="stop" label={TEXTS.stopRecording} onClick={() => stop.current()} />
      <meter aria-label={TEXTS.level} min={0} max={1} value={recording.level} />
      <span>{TEXTS.recording(clock(recording.seconds))}</span>
    </span>
  );
}

/**
 * Return what was recorded until `stopped`'s function is called; null: nothing.
 *
 * @param leave ends it when the page no longer shows it.
 * @param report is called a few times a second.
 */
async function record(
  leave: AbortSignal, report: (recording: Recording) => void, stopped: (stop: () => void) => void,
): Promise<File | null> {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const context = new AudioContext();
  try {
    const analyser = context.createAnalyser();
    context.createMediaStreamSource(stream).connect(analyser);
    const recorder = new MediaRecorder(stream);
    const parts: Blob[] = [];
    recorder.ondataavailable = ({ data }) => parts.push(data);
    const began = performance.now();
    const samples = new Float32Array(analyser.fftSize);
    const timer = setInterval(() => {
      const seconds = (performance.now() - began) / 1000;
      analyser.getFloatTimeDomainData(samples);
      report({ seconds, level: levelOf(samples) });
      if (seconds >= MOST_SECONDS) recorder.stop();
    }, 100);
    await new Promise<void>((resolve, reject) => {
      const end = () => recorder.state === "inactive" || recorder.stop();
      stopped(end);
      leave.addEventListener("abort", end);
      recorder.onstop = () => resolve();
      recorder.onerror = () => reject(new Error(TEXTS.silentRecording));
      report({ seconds: 0, level: 0 });
      recorder.start();
    }).finally(() => clearInterval(timer));
    const whole = new Blob(parts, { type: recorder.mimeType });
    return whole.size ? await asWav(whole) : null;
  } finally {
    for (const track of stream.getTracks()) track.stop();
    await context.close();
  }
}

/** Return how loud samples are, from 0 at -60 dB to 1 at full scale. */
function levelOf(samples: Float32Array): number {
  const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
  return Math.max(0, 1 - (10 * Math.log10(power || 1e-12)) / FLOOR_DB);
}
