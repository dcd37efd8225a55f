/** The field for the next message, with the images and videos that go with it. */

import type { JSX } from "preact";
import { useId, useRef, useState } from "preact/hooks";

import { IconButton } from "../parts/button.tsx";
import { Icon } from "../parts/icons.tsx";
import { ErrorText } from "../parts/told.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import { bytes } from "../units.ts";
import { MOST_BYTES, readMedia } from "./files.ts";
import { Media } from "./media.tsx";
import type { Colour } from "./token_text.ts";

export function Composer(): JSX.Element {
  const app = useApp();
  const { chats, model, models } = app;
  const [text, setText] = useState("");
  const [images, setImages] = useState<string[]>([]);
  const [note, setNote] = useState("");
  const [isOver, setOver] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const { id, logprobs, answers } = chats.open.value;
  const { isRunning } = chats;
  const problem = app.formatCheck.problem.value;
  const problemId = useId();
  const canSend = !isRunning && !problem && model.value !== "" && (text.trim() !== "" || images.length > 0);

  const add = async (files: Iterable<File>) => {
    setNote("");
    for (const file of files) {
      if (!models.can(model.value, "vision")) {
        setNote(TEXTS.noVision(model.value));
        return;
      }
      if (file.size > MOST_BYTES) {
        setNote(TEXTS.tooLarge(file.name, bytes(MOST_BYTES)));
        return;
      }
      const image = await readMedia(file);
      if (image === null) setNote(TEXTS.notImage(file.name));
      else setImages((others) => [...others, image]);
    }
  };
  const send = (event: Event) => {
    event.preventDefault();
    if (!canSend) return;
    app.send(text.trim(), images);
    setText("");
    setImages([]);
    setNote("");
  };
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    void add(event.dataTransfer?.files ?? []);
  };
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
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={onDrop}
      data-drop={TEXTS.drop}
    >
      {images.length > 0 && (
        <ul class="images">
          {images.map((image, at) => (
            <li>
              <Media url={image} number={at + 1} />
              <IconButton icon="close" label={TEXTS.removeImage} onClick={() => setImages(images.filter((_, other) => other !== at))} />
            </li>
          ))}
        </ul>
      )}
      {note && <ErrorText text={note} />}
      {problem && <ErrorText id={problemId} text={TEXTS.cannotSend(problem)} />}
      <textarea
        id="message"
        rows={1}
        dir="auto"
        aria-label={TEXTS.message}
        aria-describedby={problem ? problemId : undefined}
        placeholder={TEXTS.placeholder(model.value)}
        value={text}
        autoFocus
        onInput={(event) => setText(event.currentTarget.value)}
        onPaste={onPaste}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
        }}
      />
      <div class="composer-actions">
        <div class="composer-options">
          {models.can(model.value, "vision") && <IconButton icon="image" label={TEXTS.attach} onClick={() => input.current?.click()} />}
          <input
            ref={input}
            type="file"
            hidden
            multiple
            accept="image/png,image/jpeg,image/webp,image/gif,image/bmp,video/mp4,video/webm,video/quicktime,video/x-matroska,video/x-msvideo"
            aria-label={TEXTS.attach}
            onChange={(event) => {
              void add([...(event.currentTarget.files ?? [])]);
              event.currentTarget.value = "";
            }}
          />
          {models.can(model.value, "thinking") && (
            <label class="check">
              <input type="checkbox" checked={chats.open.value.think} onChange={(event) => chats.set({ think: event.currentTarget.checked })} />
              {TEXTS.think}
            </label>
          )}
          <select
            class="small"
            aria-label={TEXTS.answers}
            value={answers}
            onChange={(event) => chats.set({ answers: Number(event.currentTarget.value) })}
          >
            {[1, 2, 3, 4].map((number) => <option value={number}>{TEXTS.answersOf(number)}</option>)}
          </select>
          <label class="check">
            <input type="checkbox" checked={logprobs} onChange={(event) => chats.set({ logprobs: event.currentTarget.checked })} />
            {TEXTS.logprobs}
          </label>
          {logprobs && <ColourChoice />}
        </div>
        {isRunning ? (
          <IconButton class="primary" icon="stop" label={TEXTS.stop} onClick={() => chats.stop(id)} />
        ) : (
          <button
            type="submit"
            class="icon-button primary"
            aria-label={TEXTS.send}
            aria-describedby={problem ? problemId : undefined}
            title={problem ? TEXTS.cannotSend(problem) : TEXTS.send}
            disabled={!canSend}
          >
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}

function ColourChoice(): JSX.Element {
  const { settings } = useApp();
  return (
    <select
      class="small"
      aria-label={TEXTS.colour}
      value={settings.colour.value}
      onChange={(event) => settings.setColour(event.currentTarget.value as Colour)}
    >
      {Object.entries(TEXTS.colours).map(([colour, text]) => <option value={colour}>{text}</option>)}
    </select>
  );
}
