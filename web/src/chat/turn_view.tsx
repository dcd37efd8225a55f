/** One turn: a message, or an answer with its reasoning, its counts and its other versions. */

import { Component, type ComponentChildren, type JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { Code } from "../markdown/code.tsx";
import { Markdown } from "../markdown/markdown.tsx";
import { IconButton } from "../parts/button.tsx";
import { CopyButton } from "../parts/copy.tsx";
import { Icon } from "../parts/icons.tsx";
import { ModelMark } from "../parts/model_mark.tsx";
import { ModelName } from "../parts/model_menu.tsx";
import { Popover } from "../parts/popover.tsx";
import { ErrorText } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { duration } from "../units.ts";
import { AttachButton, AttachmentList, readAttachments } from "./attachments.tsx";
import { Calls } from "./calls.tsx";
import { unfit } from "./files.ts";
import { Media } from "./media.tsx";
import { Statistics, hasStatistics } from "./statistics.tsx";
import { TokenView } from "./token_view.tsx";
import { type Turn, canGoOn } from "./tree.ts";

interface Properties {
  turn: Turn;
  /** The turn and its other versions, the oldest first. */
  alternatives: Turn[];
  isLast: boolean;
}

const NAMES = { user: TEXTS.you, assistant: TEXTS.assistant, tool: TEXTS.tools } as const;

/** Drawn again only if its turn has changed: long conversations have thousands. */
export class TurnView extends Component<Properties> {
  override shouldComponentUpdate(next: Properties): boolean {
    const { turn, alternatives, isLast } = this.props;
    const isSame = next.turn === turn && next.alternatives.length === alternatives.length;
    return !isSame || next.isLast !== isLast;
  }

  override render({ turn, alternatives, isLast }: Properties): ComponentChildren {
    return (
      <>
        <h2 class="off-screen">{NAMES[turn.role]}</h2>
        {turn.role === "user" && <Question turn={turn} />}
        {turn.role === "assistant" && turn.model && <p class="answer-model"><ModelMark name={turn.model} /><ModelName name={turn.model} /></p>}
        {turn.role === "assistant" && <Answer turn={turn} isLast={isLast} />}
        {turn.role === "tool" && <Result turn={turn} />}
        <Actions turn={turn} alternatives={alternatives} isLast={isLast} />
      </>
    );
  }
}

function Question({ turn }: { turn: Turn }): JSX.Element {
  const { editing } = useApp();
  return (
    <>
      {editing.value === turn.id ? <Editor turn={turn} /> : (
        <>
          {turn.images?.map((image, at) => <Media className="sent" url={image} number={at + 1} />)}
          {turn.content && <div class="bubble" dir="auto">{turn.content}</div>}
        </>
      )}
    </>
  );
}

function Editor({ turn }: { turn: Turn }): JSX.Element {
  const { chats, editing, model, models, problem: { value: untold } } = useApp(); // the composer tells it
  const [text, setText] = useState(turn.content);
  const [images, setImages] = useState(turn.images ?? []);
  const [note, setNote] = useState("");
  const can = { see: models.can(model.value, "vision"), hear: models.can(model.value, "audio") };
  const misfit = unfit(images, model.value, can);
  const problem = untold || misfit;
  const canSend = !problem && (text.trim() !== "" || images.length > 0);
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const save = (event: Event) => {
    event.preventDefault();
    if (!canSend) return;
    editing.value = "";
    chats.edit(turn, text, images);
  };
  const add = async (files: File[]) => {
    const read = await readAttachments(files, model.value, can);
    setNote(read.note);
    setImages((now) => [...now, ...read.images]);
  };
  return (
    <form class="editor" onSubmit={save}>
      <AttachmentList images={images} onChange={setImages} />
      {(note || misfit) && <ErrorText text={note || misfit} />}
      <textarea
        ref={field}
        aria-label={TEXTS.edit}
        dir="auto"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save(event);
        }}
      />
      <footer>
        {(can.see || can.hear) && <AttachButton can={can} onFiles={(files) => void add(files)} />}
        <span class="grow" />
        <button type="button" onClick={() => (editing.value = "")}>{TEXTS.cancel}</button>
        <button type="submit" class="primary" disabled={!canSend} title={problem}>{TEXTS.send}</button>
      </footer>
    </form>
  );
}

export function Answer({ turn, isLast }: { turn: Turn; isLast: boolean }): JSX.Element {
  const { showsTokens } = useApp();
  const isStreaming = turn.state === "streaming";
  const isWaiting = isStreaming && !turn.content && !turn.reasoning && !turn.calls;
  const note = noteOf(turn);
  const dropped = turn.usage?.droppedTokens ?? 0;
  return (
    <>
      {turn.reasoning && <Reasoning turn={turn} />}
      {isWaiting && <p class="waiting">{turn.isLoading ? TEXTS.loading(turn.model ?? "") : TEXTS.waiting}</p>}
      {showsTokens.value && turn.tokens?.length ? <TokenView turn={turn} /> : turn.content && <AnswerText turn={turn} />}
      {turn.calls && <Calls turn={turn} calls={turn.calls} isOpen={isLast && !isStreaming} />}
      {note && <p class="note">{note}</p>}
      {dropped > 0 && <p class="note">{TEXTS.dropped(dropped)}</p>}
      {turn.error && <ErrorText text={turn.error} />}
    </>
  );
}

/** Markdown, unless the answer was asked for in a format: that is shown as it is. */
function AnswerText({ turn: { content, format } }: { turn: Turn }): JSX.Element {
  if (format === undefined) return <Markdown text={content} />;
  return <Code text={content} language={format === "json" || format === "schema" ? "json" : ""} />;
}

/** Return what is said about the end of an answer. */
function noteOf({ state, limit = "", usage }: Turn): string {
  if (state !== "limit") return state in TEXTS.states ? TEXTS.states[state as keyof typeof TEXTS.states] : "";
  if (limit === "tokens" && usage) return TEXTS.limits.tokens(usage.tokens);
  const known = Object.hasOwn(TEXTS.limits, limit) ? TEXTS.limits[limit as keyof typeof TEXTS.limits] : "";
  return typeof known === "string" && known ? known : TEXTS.states.limit;
}

function Result({ turn }: { turn: Turn }): JSX.Element {
  return (
    <section class="call" aria-label={TEXTS.resultOf(turn.tool ?? "")}>
      <header>{TEXTS.resultOf(turn.tool ?? "")}</header>
      <pre tabIndex={0} dir="auto">{turn.content}</pre>
    </section>
  );
}

function Reasoning({ turn }: { turn: Turn }): JSX.Element {
  const time = duration(turn.reasoningMs ?? 0);
  const isNow = turn.state === "streaming" && !turn.content;
  return (
    <details class="reasoning">
      <summary>{isNow ? TEXTS.reasoningNow(time) : TEXTS.reasoning(time)}</summary>
      <Markdown text={turn.reasoning ?? ""} />
    </details>
  );
}

function Actions({ turn, alternatives, isLast }: Properties): JSX.Element | null {
  const { chats, editing } = useApp();
  const { isRunning } = chats;
  const isUser = turn.role === "user";
  const isAnswer = turn.role === "assistant";
  if (editing.value === turn.id) return null;
  const canResume = isLast && canGoOn(turn);
  return (
    <div class="actions">
      {alternatives.length > 1 && <Versions turn={turn} alternatives={alternatives} />}
      {turn.content && <CopyButton text={turn.content} label={TEXTS.copy} />}
      {isUser && <IconButton icon="edit" label={TEXTS.edit} disabled={isRunning} onClick={() => (editing.value = turn.id)} />}
      {(isAnswer || isLast) && <IconButton icon="again" label={TEXTS.regenerate} disabled={isRunning} onClick={() => chats.regenerate(turn)} />}
      {canResume && <IconButton icon="resume" label={TEXTS.continue} disabled={isRunning} onClick={() => chats.resume(turn)} />}
      {hasStatistics(turn) && (
        <Popover class="icon-button" label={TEXTS.statistics} title={TEXTS.statistics} face={<Icon name="info" />}>
          {() => <Statistics turn={turn} />}
        </Popover>
      )}
    </div>
  );
}

function Versions({ turn, alternatives }: Omit<Properties, "isLast">): JSX.Element {
  const { chats } = useApp();
  const at = alternatives.findIndex((other) => other.id === turn.id);
  const choose = (other: Turn | undefined) => other && chats.choose(other);
  return (
    <span class="versions">
      <IconButton icon="left" label={TEXTS.earlier} disabled={at === 0} onClick={() => choose(alternatives[at - 1])} />
      <span>{TEXTS.version(at + 1, alternatives.length)}</span>
      <IconButton icon="right" label={TEXTS.later} disabled={at === alternatives.length - 1} onClick={() => choose(alternatives[at + 1])} />
      {turn.role === "assistant" && <IconButton icon="columns" label={TEXTS.sideBySide} onClick={() => (chats.sideBySide.value = turn.parent)} />}
    </span>
  );
}
