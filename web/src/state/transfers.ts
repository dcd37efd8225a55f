/** Models that are being pulled, created or quantized, and those of which that has ended. */

import { signal } from "@preact/signals";

import { messageOf } from "../api/http.ts";
import type { Progress } from "../api/server.ts";
import { TEXTS } from "../texts.ts";

export interface Transfer {
  action: "pull" | "create" | "quantize";
  /** Of the model that it makes. */
  name: string;
  status: string;
  total: number;
  completed: number;
  bytesPerSecond: number;
  state: "running" | "done" | "failed" | "cancelled";
  error: string;
  cancel: () => void;
  /** Do it again; a pull goes on where it was. */
  again: () => void;
}

/** How far one came that has not ended. */
export type Unfinished = Pick<Transfer, "name" | "completed" | "total">;

type Work = (signal: AbortSignal) => AsyncIterable<Progress>;
const NOTHING = { status: "", total: 0, completed: 0, bytesPerSecond: 0, error: "" };

export class Transfers {
  readonly all = signal<Transfer[]>([]);
  readonly #done: () => Promise<void>;

  /** @param done called after each that succeeded. */
  constructor(done: () => Promise<void>) {
    this.#done = done;
  }

  /** Show one that had not ended when the page was closed. */
  add(action: Transfer["action"], { name, completed, total }: Unfinished, again: () => void): void {
    const state = "cancelled";
    this.#put({ ...NOTHING, action, name, completed, total, status: TEXTS.unfinished, state, cancel: () => undefined, again });
  }

  /** Do the work, and show its progress; return whether it succeeded. */
  async run(
    action: Transfer["action"], name: string, work: Work, again = () => void this.run(action, name, work),
  ): Promise<boolean> {
    const abort = new AbortController();
    const cancel = () => abort.abort();
    this.#put({ ...NOTHING, action, name, state: "running", cancel, again });
    const progress = new Sum();
    try {
      for await (const step of work(abort.signal)) this.#change(name, progress.after(step));
      this.#change(name, { state: "done" });
      void this.#done();
      return true;
    } catch (error) {
      if (abort.signal.aborted) this.#change(name, { state: "cancelled", status: TEXTS.cancelled });
      else this.#change(name, { state: "failed", error: explained(messageOf(error)) });
      return false;
    }
  }

  /** Take one that has ended off the list. */
  forget(name: string): void {
    this.all.value = this.all.value.filter((one) => one.name !== name);
  }

  #put(transfer: Transfer): void {
    this.all.value = [transfer, ...this.all.value.filter((one) => one.name !== transfer.name)];
  }

  #change(name: string, change: Partial<Transfer>): void {
    this.all.value = this.all.value.map((one) => (one.name === name ? { ...one, ...change } : one));
  }
}

/** Return what the server says of a pull in the words of a page: it knows no options of a command. */
function explained(message: string): string {
  return TEXTS.registryErrors[message] ?? message.replace(TEXTS.privateRegistry.server, TEXTS.privateRegistry.page);
}

/** The progress of all files of a pull; other steps have one of their own, and some none. */
class Sum {
  readonly #files = new Map<string, { total: number; completed: number; first: number }>();
  #status = "";
  #rate = new Rate();

  after({ status, digest, total = 0, completed = 0 }: Progress): Partial<Transfer> {
    const isFile = digest !== undefined && total > 0;
    const before = isFile ? this.#files.get(digest) : undefined;
    const first = before?.completed ? before.first : completed; // the first step may have no count
    if (isFile) this.#files.set(digest, { total, completed, first });
    else if (total > 0) this.#files.clear();
    if (status !== this.#status && !isFile) this.#rate = new Rate();
    this.#status = status;
    const files = this.#files.size ? [...this.#files.values()] : [{ total, completed, first: 0 }];
    const sum = (field: "total" | "completed" | "first") => files.reduce((all, file) => all + file[field], 0);
    const came = sum("completed") - sum("first"); // what was there before has no rate
    return { status, total: sum("total"), completed: sum("completed"), bytesPerSecond: this.#rate.at(came) };
  }
}

/** Bytes a second over the last few seconds. */
class Rate {
  #seen: { ms: number; bytes: number }[] = [];

  at(bytes: number): number {
    const ms = performance.now();
    this.#seen = [...this.#seen.filter((one) => ms - one.ms < 5000), { ms, bytes }];
    const first = this.#seen[0];
    return first && ms > first.ms ? ((bytes - first.bytes) / (ms - first.ms)) * 1000 : 0;
  }
}
