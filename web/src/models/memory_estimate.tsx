/** What a model that is not in memory would take, a bar for each device, and whether it fits. */

import type { JSX } from "preact";

import type { DeviceEstimate } from "../api/server.ts";
import { ErrorText, Told } from "../parts/told.tsx";
import { useAnswer } from "../parts/use_answer.ts";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";

const NEEDS = ["weights", "cache", "graphs"] as const;
const WIDTH = 300;

export function MemoryEstimate({ name }: { name: string }): JSX.Element | null {
  const { models } = useApp();
  const others = models.loaded.value.map((model) => model.name); // what is free changes with them
  const { found, error } = useAnswer([name, ...others].join("\n"), () => models.estimate(name));
  if (error) return <ErrorText text={error} />;
  if (!found) return null;
  const used = found.devices.filter((device) => needOf(device) > 0);
  return (
    <figure class="estimate">
      <h3>{TEXTS.wouldTake(bytes(used.reduce((sum, device) => sum + needOf(device), 0)))}</h3>
      {used.map((device) => <Device key={device.name} device={device} />)}
      <ul class="legend">{NEEDS.map((need) => <li class={`need-${need}`}>{TEXTS.needs[need]}</li>)}</ul>
      <figcaption class={found.fits ? "hint" : "error"}>
        {found.fits ? TEXTS.fits(found.context, found.slots) : <Told text={TEXTS.doesNotFit(found.message)} />}
      </figcaption>
      <p class="hint">{TEXTS.estimateCounts}</p>
    </figure>
  );
}

function Device({ device }: { device: DeviceEstimate }): JSX.Element {
  const scale = WIDTH / Math.max(device.available, needOf(device), 1);
  const told = NEEDS.map((need) => `${TEXTS.needs[need]} ${bytes(device[need])}`).join(", ");
  const text = TEXTS.deviceTakes(device.name, told, bytes(device.available));
  let x = 0;
  return (
    <div>
      <svg role="img" aria-label={text} viewBox={`0 0 ${String(WIDTH)} 10`} preserveAspectRatio="none" height={10}>
        <rect class="free" x={0} y={0} width={device.available * scale} height={10} />
        {NEEDS.map((need) => {
          const width = device[need] * scale;
          x += width;
          return <rect class={`need-${need}`} x={x - width} y={0} width={width} height={10} />;
        })}
      </svg>
      <p class="hint">{text}</p>
    </div>
  );
}

function needOf(device: DeviceEstimate): number {
  return NEEDS.reduce((sum, need) => sum + device[need], 0);
}
