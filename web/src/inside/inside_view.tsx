/** The engine seen live. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { saveFile } from "../chat/files.ts";
import { SidebarButton } from "../parts/view_head.tsx";
import { useApp } from "../state/app.ts";
import { INSIDE } from "./texts.ts";
import { CellsFigure } from "./cells_figure.tsx";
import { Feed } from "./feed.ts";
import "./inside.css";
import { LayersFigure } from "./layers_figure.tsx";
import type { Frame, ModelHistory } from "./live.ts";
import { Facts, LatencyFigure, MemoryFigure, RatesFigure } from "./numbers.tsx";
import { TimelineFigure } from "./timeline_figure.tsx";
import { toTrace } from "./trace.ts";
import { TreeFigure } from "./tree_figure.tsx";

const LATE_MS = 750; // two frames in which a model told nothing

/** Return in words when the cache was read, which is less often than the batches are reported. */
function momentOf(frame: Frame, { cacheMs }: ModelHistory): string {
  return INSIDE.lookedAt((frame.time_ms - cacheMs) / 1000);
}

export default function InsideView(): JSX.Element {
  const { server, settings } = useApp();
  const feed = useMemo(() => new Feed(server, settings), [server, settings]);
  const [chosen, choose] = useState("");
  useEffect(() => {
    const end = new AbortController();
    void feed.read(end.signal);
    return () => end.abort();
  }, [feed]);
  const isPaused = feed.paused.value !== null;
  const { frame, models } = feed.paused.value ?? feed.history.value;
  const name = models.has(chosen) ? chosen : ([...models.keys()][0] ?? "");
  const history = models.get(name);
  const save = () => saveFile("trace.json", toTrace(models.values()));
  return (
    <main class="inside">
      <header class="head">
        <SidebarButton />
        <h1>{INSIDE.title}</h1>
        <button type="button" aria-pressed={isPaused} onClick={() => feed.togglePause()}>{isPaused ? INSIDE.resume : INSIDE.pause}</button>
        <button type="button" title={INSIDE.saveHint} disabled={!history?.steps.length} onClick={save}>{INSIDE.save}</button>
      </header>
      {feed.error.value && <p class="notice" role="alert">{feed.error.value}</p>}
      <div class="inside-column">
        {!frame && !feed.error.value && <p class="hint">{INSIDE.waitingForServer}</p>}
        {frame && !history && <p class="hint no-model">{INSIDE.noModel} <a href="#/models">{INSIDE.loadOne}</a></p>}
        {history && (
          <>
            <h2 class={models.size > 1 ? "off-screen" : "inside-model"}>{name}</h2>
            {models.size > 1 && (
              <select class="inside-model" aria-label={INSIDE.model} value={name} onChange={(event) => choose(event.currentTarget.value)}>
                {[...models.keys()].map((one) => <option>{one}</option>)}
              </select>
            )}
            {history.runner ? <Facts history={history} /> : <p class="hint">{INSIDE.silent}</p>}
            {frame && frame.time_ms - history.runnerMs > LATE_MS && (
              <p class="hint">{INSIDE.late((frame.time_ms - history.runnerMs) / 1000)}</p>
            )}
          </>
        )}
        <div class="inside-grid">
          {frame && history?.runner && (
            <>
              <TimelineFigure history={history} now={frame.time_ms} />
              <LayersFigure model={name} isPaused={isPaused} />
              {history.cache && <TreeFigure cache={history.cache} moment={momentOf(frame, history)} />}
              {history.cache && <CellsFigure groups={history.cache.cells} moment={momentOf(frame, history)} />}
              <RatesFigure history={history} now={frame.time_ms} />
            </>
          )}
          {history && <LatencyFigure title={INSIDE.first} found={history.model.time_to_first_token} />}
          {history && <LatencyFigure title={INSIDE.between} found={history.model.time_between_tokens} />}
          {frame && <MemoryFigure frame={frame} />}
        </div>
      </div>
    </main>
  );
}
