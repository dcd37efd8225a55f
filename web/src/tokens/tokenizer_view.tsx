/** The tokens of any text, as a model's tokenizer sees them. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { isUnreachable, messageOf } from "../api/http.ts";
import type { Piece } from "../api/server.ts";
import { ModelMenu } from "../parts/model_menu.tsx";
import { ErrorText } from "../parts/told.tsx";
import { ViewHead } from "../parts/view_head.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import "../style/tokenizer.css";

const WAIT_MS = 150; // for more typing
const SHOWN = 4000;

/** The last answer: of this text, or, for a moment, of what stood there before more was typed. */
interface Answered {
  model: string;
  pieces: Piece[];
}

export function TokenizerView(): JSX.Element {
  const { models, model, server } = useApp();
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const [isBegin, setBegin] = useState(false);
  const [isSpecial, setSpecial] = useState(true);
  const [answered, setAnswered] = useState<Answered>({ model: "", pieces: [] });
  const [error, setError] = useState("");
  const names = (models.installed.value ?? []).map((one) => one.name);
  const chosen = names.includes(name) ? name : model.value;
  const isReached = models.error.value === "";
  useEffect(() => {
    if (!text || !chosen) {
      setError("");
      return;
    }
    const abort = new AbortController();
    const ask = async () => {
      try {
        setAnswered({ model: chosen, pieces: await server.tokenize(chosen, text, { isBegin, isSpecial }, abort.signal) });
        setError("");
      } catch (reason) {
        if (abort.signal.aborted) return;
        setError(messageOf(reason));
        if (isUnreachable(reason)) void models.refresh(); // until it is back
      }
    };
    const timer = setTimeout(() => void ask(), WAIT_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, chosen, isBegin, isSpecial, isReached]);
  const pieces = text && answered.model === chosen ? answered.pieces : null;
  const known = pieces ? TEXTS.counts(pieces.length, Array.from(text).length) : TEXTS.loadingTokenizer(chosen);
  return (
    <main class="tokenizer">
      <ViewHead title={TEXTS.tokenizer} />
      <div class="tokenizer-column">
        <div class="tokenizer-options">
          <ModelMenu names={names} value={chosen} onChange={setName} />
          <label class="check">
            <input type="checkbox" checked={isSpecial} onChange={(event) => setSpecial(event.currentTarget.checked)} />
            {TEXTS.parseSpecial}
          </label>
          <label class="check">
            <input type="checkbox" checked={isBegin} onChange={(event) => setBegin(event.currentTarget.checked)} />
            {TEXTS.addSpecial}
          </label>
        </div>
        <textarea
          rows={5}
          dir="auto"
          aria-label={TEXTS.text}
          placeholder={TEXTS.textHint}
          value={text}
          autoFocus
          onInput={(event) => setText(event.currentTarget.value)}
        />
        {error ? <ErrorText text={error} /> : <p class="hint" role="status">{text ? known : TEXTS.noText}</p>}
        <ol class="pieces" aria-label={TEXTS.tokens}>
          {!error && pieces?.slice(0, SHOWN).map((piece) => <PieceItem piece={piece} />)}
        </ol>
        {!error && pieces && pieces.length > SHOWN && <p class="hint">{TEXTS.firstTokens(SHOWN)}</p>}
      </div>
    </main>
  );
}

function PieceItem({ piece: { id, text, bytes, control } }: { piece: Piece }): JSX.Element {
  const isWhole = !text.includes("\uFFFD");
  const shown = isWhole ? text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") : bytes.map(hex).join(" ");
  return (
    <li>
      {bytes.length ? <bdi class={isWhole ? "piece" : "piece raw"}>{shown}</bdi> : <bdi class="piece control" title={TEXTS.controlToken}>{control ?? TEXTS.control}</bdi>}
      <small>{id}</small>
    </li>
  );
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, "0");
}
