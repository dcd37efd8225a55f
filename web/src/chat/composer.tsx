/** The field for the next message, with the images, videos and sounds that go with it. */

import type { JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { Icon } from "../parts/icons.tsx";
import { ErrorText } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import type { Draft } from "../state/drafts.ts";
import { TEXTS } from "../texts.ts";
import { AnswerOptions } from "./answer_options.tsx";
import { AttachButton, AttachmentList, readAttachments } from "./attachments.tsx";
import { hasFiles, unfit } from "./files.ts";
import { RecordButton } from "./recorder.tsx";

/** What is written is kept until it is sent, whatever is looked at meanwhile. */
function useDraft(id: string): [Draft, (change: (now: Draft) => Draft) => void] {
  const { drafts } = useApp();
  const [draft, setDraft] = useState(() => drafts.find(id));
  const change = (changed: (now: Draft) => Draft) => {
    drafts.put(id, changed(drafts.find(id)));
    setDraft(drafts.find(id));
  };
  return [draft, change];
}

export function Composer(): JSX.Element {
  const app = useApp();
  const { chats, goneModel, model, models } = app;
  const [{ text, images }, change] = useDraft(chats.openId.value);
  const [note, setNote] = useState("");
  const [isOver, setOver] = useState(false);
  const { id } = chats.open.value;
  const { isRunning } = chats;
  const can = { see: models.can(model.value, "vision"), hear: models.can(model.value, "audio") };
  const problem = app.problem.value || unfit(images, model.value, can);
  const problemId = useId();
  const canSend = !isRunning && !problem && model.value !== "" && (text.trim() !== "" || images.length > 0);

  const add = async (files: File[]) => {
    const read = await readAttachments(files, model.value, can);
    setNote(read.note);
    change((now) => ({ ...now, images: [...now.images, ...read.images] }));
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (!canSend) return;
    change(() => ({ text: "", images: [] }));
    setNote("");
    app.send(text.trim(), images);
  };
  useFiles((files) => void add(files), setOver);
  const onPaste = (event: ClipboardEvent) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    void add(files);
  };
  return (
    <form
      class={`composer ${isOver ? "over" : ""}`}
      onSubmit={send}
      data-drop={TEXTS.drop}
    >
      <AttachmentList images={images} onChange={(left) => change((now) => ({ ...now, images: left }))} />
      {note && <ErrorText text={note} />}
      {problem && <ErrorText id={problemId} text={problem} />}
      {goneModel.value && model.value !== goneModel.value && (
        <button type="button" class="other-model" onClick={() => app.goOnWith(model.value)}>{TEXTS.useModel(model.value)}</button>
      )}
      <textarea
        id="message"
        rows={1}
        dir="auto"
        aria-label={TEXTS.message}
        aria-describedby={problem ? problemId : undefined}
        placeholder={TEXTS.placeholder(goneModel.value ? "" : model.value)}
        value={text}
        autoFocus
        onInput={({ currentTarget }) => change((now) => ({ ...now, text: currentTarget.value }))}
        onPaste={onPaste}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
        }}
      />
      <div class="composer-actions">
        <div class="composer-options">
          {(can.see || can.hear) && <AttachButton can={can} onFiles={(files) => void add(files)} />}
          {can.hear && <RecordButton onSound={(sound) => void add([sound])} onProblem={setNote} />}
          <AnswerOptions />
        </div>
        {isRunning ? (
          <IconButton class="primary" icon="stop" label={TEXTS.stop} onClick={({ detail }) => detail < 2 && chats.stop(id)} />
        ) : (
          <button
            type="submit"
            class="icon-button primary"
            aria-label={TEXTS.send}
            aria-describedby={problem ? problemId : undefined}
            title={problem || TEXTS.send}
            disabled={!canSend}
            onClick={(event) => event.detail > 1 && event.preventDefault()}
          >
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}

/** Take the files that are dropped anywhere on the page, and say while some are above it. */
function useFiles(take: (files: File[]) => void, setOver: (isOver: boolean) => void): void {
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => {
    const end = new AbortController();
    const on = (type: "dragover" | "dragleave" | "drop", act: (event: DragEvent) => void) =>
      addEventListener(type, act, { signal: end.signal });
    on("dragover", (event) => setOver(hasFiles(event)));
    on("dragleave", (event) => event.relatedTarget === null && setOver(false));
    on("drop", (event) => {
      setOver(false);
      if (hasFiles(event)) latest.current([...(event.dataTransfer?.files ?? [])]);
    });
    return () => end.abort();
  }, []);
}
