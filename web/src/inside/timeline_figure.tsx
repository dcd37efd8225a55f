/** The time line: when batches were computed, and which requests were in them. */

import type { JSX } from "preact";
import { useCallback, useMemo, useState } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { INSIDE } from "./texts.ts";
import { Canvas, type Colors, type Draw, hueOf } from "./canvas.tsx";
import { KEPT_MS, type ModelHistory } from "./live.ts";
import { type Bar, DEVICE, WAITING, timelineOf } from "./timeline.ts";

const SPANS = [0.25, 0.5, 1, 2, 5, 10, 30, 60];
const USUAL = 5;
const LABEL = 84;
const NARROW_LABEL = 42;
const LANE = 20;
const AXIS = 20;
const LEAST_LANES = 5;
const DRAFTS = 5; // pixels high

interface Properties {
  history: ModelHistory;
  now: number;
}

export function TimelineFigure({ history, now }: Properties): JSX.Element {
  const [zoom, setZoom] = useState(USUAL);
  const [back, setBack] = useState(0);
  const span = (SPANS[zoom] ?? 1) * 1000;
  const to = now - back;
  const from = to - span;
  const { bars, lanes } = useMemo(() => timelineOf(history, from, to), [history, from, to]);
  const draw = useCallback<Draw>((context, width, height, colors) => {
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    const left = width < 420 ? NARROW_LABEL : LABEL;
    const x = (ms: number) => left + ((ms - from) / span) * (width - left);
    context.textBaseline = "middle";
    lanes.forEach((request, lane) => {
      const y = lane * LANE;
      context.fillStyle = colors("line");
      context.fillRect(left, y + LANE - 1, width - left, 1);
      context.fillStyle = colors("quiet");
      const name = request === DEVICE ? INSIDE.device : request === WAITING ? INSIDE.waits : left < LABEL ? String(request) : INSIDE.request(request);
      context.fillText(name, 0, y + LANE / 2);
    });
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    for (const bar of bars) drawBar(context, bar, x, colors);
    context.restore();
    context.fillStyle = colors("quiet");
    context.textBaseline = "bottom";
    for (let part = 0; part <= 4; part++) {
      if (width < 420 && part % 2) continue;
      context.textAlign = part === 0 ? "left" : part === 4 ? "right" : "center";
      const ms = from + (span * part) / 4;
      context.fillText(INSIDE.ago((now - ms) / 1000, span < 2000 ? 2 : span < 20_000 ? 1 : 0), x(ms), height - 2);
    }
    context.textAlign = "left";
  }, [bars, lanes, from, to, span, now]);
  const move = (by: number) => setBack(Math.min(Math.max(back + by * span / 4, 0), KEPT_MS - span));
  const closer = (by: number) => setZoom(Math.min(Math.max(zoom + by, 0), SPANS.length - 1));
  const onKeyDown = (event: KeyboardEvent) => {
    const act = { ArrowLeft: () => move(1), ArrowRight: () => move(-1), "+": () => closer(-1), "-": () => closer(1) }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  };
  const inside = history.steps.filter((step) => step.began_ms < to && step.began_ms + step.compute_ms > from);
  const parts = inside.flatMap((step) => step.parts);
  const tokens = (wanted: boolean) => parts.reduce((all, [, , many, isPrompt]) => all + (isPrompt === wanted ? many : 0), 0);
  const requests = new Set(parts.map(([request]) => request)).size;
  const drafts = parts.reduce((all, part) => all + part[4], 0);
  const accepted = parts.reduce((all, part) => all + part[5], 0);
  const waiting = back === 0 ? (history.runner?.waiting ?? 0) : 0;
  const text = INSIDE.timelineText(span / 1000, back / 1000, inside.length, requests, tokens(true), tokens(false), waiting) + (drafts ? ` ${INSIDE.draftsText(accepted, drafts)}` : "");
  return (
    <figure class="inside-figure wide">
      <div class="figure-head">
        <h2>{INSIDE.timeline}</h2>
        <IconButton icon="left" label={INSIDE.earlier} onClick={() => move(1)} disabled={back >= KEPT_MS - span} />
        <IconButton icon="right" label={INSIDE.later} onClick={() => move(-1)} disabled={back === 0} />
        <button type="button" class="icon-button" aria-label={INSIDE.zoomOut} title={INSIDE.zoomOut} disabled={zoom === SPANS.length - 1} onClick={() => closer(1)}>−</button>
        <span class="hint zoom">{INSIDE.seconds(span / 1000)}</span>
        <button type="button" class="icon-button" aria-label={INSIDE.zoomIn} title={INSIDE.zoomIn} disabled={zoom === 0} onClick={() => closer(-1)}>+</button>
      </div>
      <Canvas label={`${INSIDE.timeline}. ${text}`} height={Math.max(lanes.length, LEAST_LANES) * LANE + AXIS} draw={draw} onKeyDown={onKeyDown} />
      <figcaption>
        <span>{text}</span>
        <span class="legend">
          <span class="swatch prompt-swatch">{INSIDE.prompt}</span>
          <span class="swatch answer-swatch">{INSIDE.answer}</span>
          {drafts > 0 && <span class="swatch accepted-swatch">{INSIDE.accepted}</span>}
          {drafts > 0 && <span class="swatch refused-swatch">{INSIDE.refused}</span>}
          <span class="swatch wait-swatch">{INSIDE.waited}</span>
          <span class="swatch new-swatch">{INSIDE.newGraph}</span>
        </span>
      </figcaption>
    </figure>
  );
}

function drawBar(context: CanvasRenderingContext2D, bar: Bar, x: (ms: number) => number, colors: Colors): void {
  const start = x(bar.from);
  const width = Math.max(x(bar.to) - start - 0.5, 0.75);
  const y = bar.lane * LANE;
  if (bar.kind === "wait") {
    context.fillStyle = colors("quiet");
    context.fillRect(start, y + LANE / 2 - 1, width, 2);
    return;
  }
  const isDevice = bar.lane === DEVICE;
  context.fillStyle = colors(isDevice ? (bar.kind === "newGraph" ? "ink" : "accent") : hueOf(bar.request));
  if (bar.kind === "answer") {
    context.fillRect(start, y + LANE / 2 - 2, width, 5);
    if (bar.drafts) drawDrafts(context, bar.drafts, start, y + 1, width, colors);
  }
  else context.fillRect(start, y + 3, width, LANE - 7);
}

/** Above the bar of an answer: the share of its drafts that were right, then of those that were not. */
function drawDrafts(context: CanvasRenderingContext2D, { all, accepted }: NonNullable<Bar["drafts"]>, x: number, y: number, width: number, colors: Colors): void {
  const right = (width * accepted) / all;
  context.fillStyle = colors("accent");
  context.fillRect(x, y, right, DRAFTS);
  context.fillStyle = colors("danger");
  context.fillRect(x + right, y, width - right, DRAFTS);
}
