/** The dialogs of the whole page: the key, the settings, the table of keys. */

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";

import { IconButton } from "./parts/button.tsx";
import { Dialog } from "./parts/dialog.tsx";
import { Segments } from "./parts/segments.tsx";
import { ErrorText } from "./parts/told.tsx";
import { useAnswer } from "./parts/use_answer.ts";
import { ACTIONS, ACTIONS_OF_PARTS } from "./keys.ts";
import { useApp } from "./state/app.ts";
import { THEMES, type Theme } from "./state/settings.ts";
import { TEXTS } from "./texts.ts";

interface Properties {
  onClose: () => void;
}

export function KeyDialog(): JSX.Element {
  const { settings } = useApp();
  return (
    <Dialog title={TEXTS.key} onClose={() => settings.replied()}>
      {settings.key.value ? <ErrorText text={TEXTS.keyRefused} /> : <p>{TEXTS.keyHint}</p>}
      <KeyForm />
    </Dialog>
  );
}

export function SettingsDialog({ onClose }: Properties): JSX.Element {
  const { server, settings, showsKeys } = useApp();
  const version = useAnswer("version", () => server.version()).found;
  return (
    <Dialog title={TEXTS.settings} onClose={onClose}>
      <Segments
        label={TEXTS.theme}
        choices={THEMES.map((theme): [Theme, string] => [theme, TEXTS.themes[theme]])}
        value={settings.theme.value}
        onChange={(theme) => settings.setTheme(theme)}
      />
      <KeyForm />
      {settings.toolUrls.value.length > 0 && <ToolUrls />}
      <footer>
        <span class="hint grow">{version && TEXTS.serverVersion(version)}</span>
        <button
          type="button"
          onClick={() => {
            onClose();
            showsKeys.value = true;
          }}
        >
          {TEXTS.keys}
        </button>
      </footer>
    </Dialog>
  );
}

/** The URLs to which calls of tools are sent; they can be taken off. */
function ToolUrls(): JSX.Element {
  const { settings } = useApp();
  return (
    <section class="field" aria-label={TEXTS.toolUrls}>
      {TEXTS.toolUrls}
      <ul class="tool-urls">
        {settings.toolUrls.value.map((url) => (
          <li key={url}>
            <code>{url}</code>
            <IconButton icon="close" label={TEXTS.forbid(url)} onClick={() => settings.allowTool(url, false)} />
          </li>
        ))}
      </ul>
    </section>
  );
}

export function KeysDialog({ onClose }: Properties): JSX.Element {
  return (
    <Dialog title={TEXTS.keys} onClose={onClose}>
      <dl class="keys">
        {[...ACTIONS.map(({ keys, text }) => ({ keys: keys.split("+"), text })), ...ACTIONS_OF_PARTS].map(({ keys, text }) => (
          <div>
            <dt>{keys.map((key) => <kbd>{key}</kbd>)}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

function KeyForm(): JSX.Element {
  const { settings, models } = useApp();
  const saved = settings.key.value;
  const [key, setKey] = useState(saved);
  const [done, setDone] = useState("");
  const [isWrong, setWrong] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const put = (next: string) => {
    setKey(next);
    settings.setKey(next);
    setDone(next ? TEXTS.keySaved : TEXTS.keyRemoved);
    void models.refresh();
  };
  const save = (event: Event) => {
    event.preventDefault();
    if (isKey(key.trim())) put(key.trim());
    else setWrong(true);
  };
  const remove = () => {
    put("");
    field.current?.focus(); // the button goes
  };
  return (
    <form class="field" onSubmit={save}>
      <label for="api-key">{TEXTS.key}</label>
      <div class="row">
        <input
          id="api-key"
          ref={field}
          type="password"
          autoComplete="off"
          value={key}
          autoFocus={settings.asksForKey.value}
          onInput={(event) => {
            setKey(event.currentTarget.value);
            setDone("");
            setWrong(false);
          }}
        />
        <button type="submit" disabled={!key.trim() || (key.trim() === saved && !settings.asksForKey.value)}>{TEXTS.save}</button>
        {saved && <button type="button" class="danger" onClick={remove}>{TEXTS.removeKey}</button>}
      </div>
      {isWrong && <ErrorText text={TEXTS.keyWrong} />}
      <p class="hint" role="status">{done}</p>
    </form>
  );
}

/** Whether a header can have it. */
function isKey(text: string): boolean {
  return /^[\x21-\x7e]+$/.test(text);
}
