/** One pull, creation or quantization: its progress, rate and time left. */

import type { JSX } from "preact";

import { sentence } from "../api/sentence.ts";
import { IconButton } from "../parts/button.tsx";
import { ErrorText } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import type { Transfer } from "../state/transfers.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";

export function TransferRow({ transfer }: { transfer: Transfer }): JSX.Element {
  const { models } = useApp();
  const { action, name, status, total, completed, bytesPerSecond, state, error } = transfer;
  const isRunning = state === "running";
  const isDone = state === "done";
  const leftMs = bytesPerSecond > 0 ? (Math.max(0, total - completed) / bytesPerSecond) * 1000 : null;
  const parts = [
    sentence(status),
    total > 0 && TEXTS.partOf(bytes(completed), bytes(total)),
    isRunning && bytesPerSecond > 0 && `${bytes(bytesPerSecond)}/s`,
    isRunning && leftMs !== null && TEXTS.left(leftMs),
  ];
  const again = action === "pull" && state === "cancelled" ? TEXTS.resume : TEXTS.tryAgain;
  return (
    <section class="transfer" aria-label={`${TEXTS.actions[action]} ${name}`}>
      <div class="transfer-head">
        <strong>{name}</strong>
        <span class="hint">{isDone ? `${TEXTS.actions[action]}: ${sentence(status)}` : TEXTS.actions[action]}</span>
        {!isRunning && <IconButton icon="close" label={TEXTS.dismiss} onClick={() => models.forget(transfer)} />}
      </div>
      {!isDone && !error && <Bar name={name} total={total} completed={completed} isRunning={isRunning} />}
      {!isDone && (
        <div class="transfer-foot">
          {error ? <ErrorText text={error} /> : <span class="hint">{parts.filter(Boolean).join(", ")}</span>}
          {isRunning && <button type="button" onClick={transfer.cancel}>{TEXTS.cancel}</button>}
          {!isRunning && <button type="button" onClick={transfer.again}>{again}</button>}
        </div>
      )}
    </section>
  );
}

/** How much is done; without a total, that something is being done; nothing if neither is known. */
function Bar({ name, total, completed, isRunning }: Pick<Transfer, "name" | "total" | "completed"> & { isRunning: boolean }): JSX.Element | null {
  if (total > 0) return <progress aria-label={name} max={total} value={completed} />;
  return isRunning ? <progress aria-label={name} /> : null;
}
