/** What is best told as numbers: rates, latencies, memory. */

import type { JSX } from "preact";

import { INSIDE } from "./texts.ts";
import { decimal, duration, grouped } from "../units.ts";
import { type Distribution, type Frame, KEPT_MS, type ModelHistory, type Sample, quantile } from "./live.ts";

const WIDTH = 400;
const HEIGHT = 90;

export function Facts({ history }: { history: ModelHistory }): JSX.Element {
  const { runner, samples } = history;
  const last = samples.at(-1);
  const recent = history.steps.slice(-50);
  const mean = (values: number[]) => (values.length ? values.reduce((all, one) => all + one, 0) / values.length : null);
  const perBatch = mean(recent.map((step) => step.parts.length));
  const compute = mean(recent.map((step) => step.compute_ms));
  const graphs = (runner?.graphs_built ?? 0) + (runner?.graphs_reused ?? 0);
  const facts: [string, string][] = [
    [INSIDE.facts.running, `${runner?.requests.length ?? 0} / ${history.model.slots}`],
    [INSIDE.facts.waiting, grouped(runner?.waiting ?? 0)],
    [INSIDE.facts.prompt, rate(last?.promptRate)],
    [INSIDE.facts.answer, rate(last?.answerRate)],
    [INSIDE.facts.batch, perBatch === null ? "–" : perBatch.toFixed(1)],
    [INSIDE.facts.step, compute === null ? "–" : INSIDE.milliseconds(compute)],
    [INSIDE.facts.python, percent(runner?.python_share ?? null)],
    [INSIDE.facts.graphs, graphs ? percent((runner?.graphs_reused ?? 0) / graphs) : "–"],
    [INSIDE.facts.cost, runner?.interval_ms ? percent(runner.recording_ms / runner.interval_ms, 2) : "–"],
  ];
  return <dl class="facts">{facts.map(([name, value]) => <div><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

export function RatesFigure({ history, now }: { history: ModelHistory; now: number }): JSX.Element {
  const { samples } = history;
  const last = samples.at(-1);
  const most = Math.max(1, ...samples.flatMap((one) => [one.promptRate, one.answerRate]));
  const text = INSIDE.ratesText(last?.promptRate ?? 0, last?.answerRate ?? 0);
  const line = (value: (sample: Sample) => number) =>
    samples.map((one) => `${(WIDTH * (1 - (now - one.time_ms) / KEPT_MS)).toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 6) * (value(one) / most)).toFixed(1)}`).join(" ");
  return (
    <figure class="inside-figure">
      <h2>{INSIDE.rates}</h2>
      <svg class="plot" role="img" aria-label={text} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
        <line class="axis" x1="0" y1={HEIGHT - 1} x2={WIDTH} y2={HEIGHT - 1} />
        <polyline class="prompt-line" points={line((one) => one.promptRate)} />
        <polyline class="answer-line" points={line((one) => one.answerRate)} />
      </svg>
      <p class="bounds" aria-hidden="true">
        <span>{INSIDE.ago(KEPT_MS / 1000, 0)}</span>
        <span>{most > 1 && INSIDE.most(most)}</span>
        <span>{INSIDE.ago(0, 0)}</span>
      </p>
      <figcaption>
        <span>{text}</span>
        <span class="legend">
          <span class="swatch warm-swatch">{INSIDE.prompt}</span>
          <span class="swatch accent-swatch">{INSIDE.answer}</span>
        </span>
      </figcaption>
    </figure>
  );
}

export function LatencyFigure({ title, found }: { title: string; found: Distribution }): JSX.Element {
  const { bounds, counts } = found;
  const total = counts.reduce((all, one) => all + one, 0);
  const most = Math.max(1, ...counts);
  const text = INSIDE.latencyText(total, quantile(found, 0.5), quantile(found, 0.95));
  const width = WIDTH / Math.max(counts.length, 1);
  const named = [0, Math.floor(bounds.length / 2), bounds.length - 1];
  return (
    <figure class="inside-figure">
      <h2>{title}</h2>
      <svg class="plot" role="img" aria-label={`${title}. ${text}`} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
        <line class="axis" x1="0" y1={HEIGHT - 1} x2={WIDTH} y2={HEIGHT - 1} />
        {counts.map((one, at) => {
          const height = (HEIGHT - 6) * (one / most);
          return <rect class="bar" x={at * width + 1.5} y={HEIGHT - 1 - height} width={width - 3} height={height} />;
        })}
      </svg>
      <p class="bounds" aria-hidden="true">{named.map((at) => <span>{duration((bounds[at] ?? 0) * 1000)}</span>)}</p>
      <figcaption>{text}</figcaption>
    </figure>
  );
}

export function MemoryFigure({ frame }: { frame: Frame }): JSX.Element {
  const most = Math.max(1, ...frame.processes.map((process) => process.memory_bytes));
  return (
    <figure class="inside-figure">
      <h2>{INSIDE.memory}</h2>
      <dl class="memory-list">
        {frame.processes.map(({ name, memory_bytes }) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{INSIDE.size(memory_bytes)}</dd>
            <dd class="memory-bar" aria-hidden="true"><span style={{ width: `${(100 * memory_bytes) / most}%` }} /></dd>
          </div>
        ))}
      </dl>
      <figcaption>{INSIDE.memoryCounts}</figcaption>
    </figure>
  );
}

function rate(value: number | undefined): string {
  return value === undefined ? "–" : grouped(Math.round(value));
}

function percent(share: number | null, digits = 0): string {
  return share === null ? "–" : `${decimal(100 * share, digits)} %`;
}
