/** Recorded sounds as WAV files, which every server reads. */

/** Samples a second: encoders take no more. */
export const RATE = 16_000;

/** Return a recording of any kind that the browser reads as a WAV file: mono, 16 bits. */
export async function asWav(recording: Blob): Promise<File> {
  const context = new OfflineAudioContext(1, 1, RATE); // what it decodes it resamples
  const heard = await context.decodeAudioData(await recording.arrayBuffer());
  return new File([wavOf(mixed(heard))], "recording.wav", { type: "audio/wav" });
}

function mixed(heard: AudioBuffer): Float32Array {
  const mean = new Float32Array(heard.length);
  for (let channel = 0; channel < heard.numberOfChannels; channel++) {
    heard.getChannelData(channel).forEach((sample, at) => {
      mean[at] = (mean[at] ?? 0) + sample / heard.numberOfChannels;
    });
  }
  return mean;
}

/** Return samples between -1 and 1 as the bytes of a file. */
export function wavOf(samples: Float32Array): ArrayBuffer {
  const size = 2 * samples.length;
  const file = new DataView(new ArrayBuffer(44 + size));
  const write = (at: number, text: string) => {
    for (let index = 0; index < text.length; index++) file.setUint8(at + index, text.charCodeAt(index));
  };
  write(0, "RIFF");
  file.setUint32(4, 36 + size, true);
  write(8, "WAVEfmt ");
  file.setUint32(16, 16, true);
  file.setUint16(20, 1, true);
  file.setUint16(22, 1, true);
  file.setUint32(24, RATE, true);
  file.setUint32(28, 2 * RATE, true);
  file.setUint16(32, 2, true);
  file.setUint16(34, 16, true);
  write(36, "data");
  file.setUint32(40, size, true);
  samples.forEach((sample, at) => {
    file.setInt16(44 + 2 * at, Math.round(Math.max(-1, Math.min(1, sample)) * 32767), true);
  });
  return file.buffer;
}
