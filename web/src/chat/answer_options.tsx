/** How the next answers are made and shown: quiet until they are asked for. */

import type { JSX } from "preact";

import { Icon } from "../parts/icons.tsx";
import { Popover } from "../parts/popover.tsx";
import { Segments } from "../parts/segments.tsx";
import { useApp } from "../state/app.ts";
import { TEXTS } from "../texts.ts";
import type { Colour } from "./token_text.ts";

const MOST_ANSWERS = 4;
const COLOURS: readonly Colour[] = ["probability", "entropy"];

export function AnswerOptions(): JSX.Element {
  const app = useApp();
  const { chats, model, models, settings } = app;
  const { answers, logprobs, think } = chats.open.value;
  const canThink = models.can(model.value, "thinking");
  const isSet = answers > 1 || logprobs || (canThink && !think);
  return (
    <Popover
      class={`icon-button ${isSet ? "is-set" : ""}`}
      label={TEXTS.answerOptions}
      title={TEXTS.answerOptions}
      face={<Icon name="levels" />}
    >
      {(close) => (
        <div class="answer-options">
          <Segments
            label={TEXTS.answers}
            choices={Array.from({ length: MOST_ANSWERS }, (_, at): [number, string] => [at + 1, String(at + 1)])}
            value={answers}
            onChange={(number) => chats.set({ answers: number })}
          />
          {canThink && (
            <label class="check">
              <input type="checkbox" checked={think} onChange={(event) => chats.set({ think: event.currentTarget.checked })} />
              {TEXTS.think}
            </label>
          )}
          <label class="check">
            <input type="checkbox" checked={logprobs} onChange={(event) => chats.set({ logprobs: event.currentTarget.checked })} />
            {TEXTS.logprobs}
          </label>
          <Segments
            label={TEXTS.colour}
            choices={COLOURS.map((colour): [Colour, string] => [colour, TEXTS.colours[colour]])}
            value={settings.colour.value}
            disabled={!logprobs}
            onChange={(colour) => settings.setColour(colour)}
          />
          <button
            type="button"
            onClick={() => {
              close();
              app.showsParameters.value = true;
            }}
          >
            <Icon name="sliders" /> {TEXTS.allParameters}
          </button>
        </div>
      )}
    </Popover>
  );
}
