/** The tokens of any text, as a model's tokenizer sees them. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { messageOf } from "../api/http.ts";
import type { Piece } from "../api/server.ts";
import { ModelChoice } from "../parts/model_choice.tsx";
import { ViewHead } from "../parts/view_head.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import "../style/tokenizer.css";

const WAIT_MS = 150; // for more typing
const SHOWN = 4000;

export function TokenizerView(): JSX.Element {
  const { models, model, server } = useApp();
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const [isBegin, setBegin] = useState(false);
  const [isSpecial, setSpecial] = useState(true);
  const [pieces, setPieces] = useState<Piece[]>([]);
  const [error, setError] = useState("");
  const names = (models.installed.value ?? []).map((one) => one.name);
  const chosen = names.includes(name) ? name : model.value;
  useEffect(() => {
    if (!text || !chosen) {
      setPieces([]);
      setError("");
      return;
    }
    const abort = new AbortController();
    const ask = async () => {
      try {
        setPieces(await server.tokenize(chosen, text, { isBegin, isSpecial }, abort.signal));
        setError("");
      } catch (reason) {
        if (!abort.signal.aborted) setError(messageOf(reason));
      }
    };
    const timer = setTimeout(() => void ask(), WAIT_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, chosen, isBegin, isSpecial]);
  return (
    <main class="tokenizer">
      <ViewHead title={TEXTS.tokenizer} />
      <div class="tokenizer-column">
        <div class="tokenizer-options">
          <ModelChoice names={names} value={chosen} onChange={setName} />
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
        {error && <p class="error" role="alert">{error}</p>}
        <p class="hint" role="status">{text ? TEXTS.counts(pieces.length, Array.from(text).length) : TEXTS.noText}</p>
        <ol class="pieces" aria-label={TEXTS.tokens}>
          {pieces.slice(0, SHOWN).map((piece) => <PieceItem piece={piece} />)}
        </ol>
        {pieces.length > SHOWN && <p class="hint">{TEXTS.firstTokens(SHOWN)}</p>}
      </div>
    </main>
  );
}

function PieceItem({ piece: { id, text, bytes } }: { piece: Piece }): JSX.Element {
  const isWhole = !text.includes("\uFFFD");
  const shown = isWhole ? text.replaceAll("\n", "↵").replaceAll("\t", "⇥") : bytes.map(hex).join(" ");
  return (
    <li>
      {bytes.length ? <bdi class={isWhole ? "piece" : "piece raw"}>{shown}</bdi> : <span class="piece control">{TEXTS.control}</span>}
      <small>{id}</small>
    </li>
  );
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, "0");
}
