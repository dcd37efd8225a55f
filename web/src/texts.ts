/** The texts of the page. */

export const TEXTS = {
  newChat: "New chat",
  chats: "Conversations",
  models: "Models",
  inside: "Inside",
  settings: "Settings",
  search: "Search conversations",
  noChats: "Your conversations are kept in this browser, and appear here.",
  noMatch: "No conversation has these words.",
  noModel: "This server has no model to chat with. Pull one in Models.",
  welcome: "What would you like to know?",
  message: "Message",
  placeholder: (model: string) => (model ? `Message ${model}` : "Message"),
  send: "Send",
  stop: "Stop",
  attach: "Add images or videos",
  noVision: (model: string) => `${model} cannot see images and videos.`,
  notImage: (name: string) => `${name} is not a PNG, JPEG, WebP, GIF or BMP image, and no MP4, MOV, WebM, Matroska or AVI video.`,
  removeImage: "Remove",
  imageOf: (number: number) => `Image ${String(number)}`,
  videoOf: (size: string) => `Video, ${size}`,
  tooLarge: (name: string, most: string) => `${name} has more than ${most}.`,
  image: "Image",
  drop: "Drop images or videos here",
  copy: "Copy",
  copied: "Copied",
  edit: "Edit",
  regenerate: "Answer again",
  continue: "Continue",
  answer: "Answer",
  cancel: "Cancel",
  close: "Close",
  save: "Save",
  earlier: "Earlier version",
  later: "Later version",
  version: (at: number, count: number) => `${String(at)} of ${String(count)}`,
  you: "You",
  assistant: "Assistant",
  reasoning: (seconds: string) => `Reasoned for ${seconds}`,
  reasoningNow: (seconds: string) => `Reasoning… ${seconds}`,
  waiting: "Waiting for the first token…",
  states: {
    stopped: "Stopped.",
    interrupted: "Interrupted: the page was closed or reloaded.",
    limit: "Ended at the limit of tokens.",
    failed: "",
  },
  parameters: "Parameters",
  system: "System prompt",
  systemHint: "Instructions that the model gets before the conversation",
  think: "Reason before answering",
  modelDefault: "default of the model",
  reset: "Reset all",
  rename: "Rename",
  title: "Title",
  delete: "Delete",
  deleteChat: (title: string) => `Delete the conversation “${title}”? It cannot be brought back.`,
  exportJson: "Export as JSON",
  exportMarkdown: "Export as Markdown",
  exportAll: "Export all conversations",
  import: "Import conversations",
  imported: (count: number) => (count === 1 ? "1 conversation imported." : `${String(count)} conversations imported.`),
  menu: "Conversation menu",
  openSidebar: "Show conversations",
  key: "API key",
  keyHint: "The server asks for an API key. It is kept in this browser, and sent to this server only.",
  theme: "Theme",
  themes: { system: "as the system", light: "light", dark: "dark" },
  keys: "Keyboard",
  server: "Server",
  pull: "Pull",
  tryAgain: "Try again",
  pullHint: "Name of a model, such as qwen3:4b or hf.co/user/repository:Q4_K_M",
  pullLabel: "Model to pull",
  actions: { pull: "Pull", create: "Create", quantize: "Quantize" },
  cancelled: "Cancelled",
  resume: "Resume",
  partOf: (done: string, all: string) => `${done} of ${all}`,
  left: (time: string) => `${time} left`,
  create: "Create",
  createFromFile: "Create from a file",
  createHint: "GGUF files of this machine: the parts of one model, with its vision encoder if it has one.",
  files: "GGUF files",
  modelName: "Name of the new model",
  quantizeTo: "Quantize to",
  asInFile: "as in the file",
  quantizeModel: (name: string) => `Quantize ${name}`,
  quantizeHint: "The model stays as it is; the new one is smaller and faster, and a little less exact.",
  reading: (file: string) => `reading ${file}`,
  uploading: (file: string) => `uploading ${file}`,
  inMemory: "In memory",
  load: "Load",
  unload: "Unload",
  details: "Details",
  layers: "Layers",
  layer: (number: number) => `Layer ${String(number)}`,
  layersText: (layers: number, tensors: number, size: string, types: string) =>
    `${count(layers, "layer")}, ${count(tensors, "tensor")}, ${size}: ${types}.`,
  layerColumns: ["Layer", "Parts", "Types", "Size"],
  noLayer: "none",
  parts: { attention: "attention", recurrent: "recurrent", feedForward: "feed-forward", experts: "experts", other: "norms and other" },
  asTable: "As a table",
  notLoadedModel: (name: string) => `${name} could not be loaded`,
  deleteModel: (name: string) => `Delete the model ${name}? Its files are removed from this machine.`,
  noModels: "No models yet. Pull one above.",
  memory: (size: string) => `${size} of memory`,
  logprobs: "Token probabilities",
  colour: "Colour of tokens",
  colours: { probability: "by probability", entropy: "by entropy" },
  alternatives: "Alternatives of the token",
  tokenFacts: (logprob: string, bits: string) => `logprob ${logprob} · entropy ${bits} bits`,
  goOn: "Choose a token, and the answer goes on from there as a new version.",
  format: "Output format",
  formatKind: "Format",
  formats: {
    none: "any text",
    json: "JSON",
    schema: "JSON schema",
    gbnf: "grammar (GBNF)",
    lark: "grammar (Lark)",
    regex: "regular expression",
  },
  formatHints: {
    schema: '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
    gbnf: 'root ::= "yes" | "no"',
    lark: 'start: "yes" | "no"',
    regex: "[0-9]+",
  },
  emptyFormat: "The output format is empty.",
  schemaNotObject: "A JSON schema is an object.",
  cannotSend: (problem: string) => `The output format or the tools cannot be sent: ${problem}`,
  tools: "Tools",
  toolsLabel: "Functions that the model may call, as JSON",
  toolsHint: '[{"name": "weather", "description": "The weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]',
  notFunction: (at: number) => `Tool ${String(at + 1)} is not a function: an object with a name.`,
  noFunctionName: (at: number) => `Function ${String(at + 1)} has no name.`,
  parametersNotObject: (name: string) => `The parameters of ${name} are not an object.`,
  callOf: (name: string) => `Call of ${name}`,
  resultOf: (name: string) => `Result of ${name}`,
  sendResults: "Send the results",
  answers: "Number of answers",
  answersOf: (number: number) => count(number, "answer"),
  sideBySide: "Side by side",
  useAnswer: "Go on with this answer",
  compare: "Compare",
  comparePlaceholder: "Message to both models",
  side: (name: string) => `Side ${name}`,
  modelOf: (side: string) => `Model ${side}`,
  settingsOf: (number: number) => (number ? `Parameters (${String(number)} set)` : "Parameters"),
  noAnswer: "The answer appears here.",
  notLoaded: "This view could not be loaded. Reload the page.",
  tokenizer: "Tokenizer",
  tokens: "Tokens",
  text: "Text",
  textHint: "Any text. Its tokens appear below while you type.",
  noText: "The tokens of the text appear here, each with its id.",
  parseSpecial: "Read control tokens",
  addSpecial: "Add the model's start and end tokens",
  control: "control",
  counts: (tokens: number, characters: number) => `${count(tokens, "token")}, ${count(characters, "character")}`,
  firstTokens: (shown: number) => `The first ${String(shown)} are shown.`,
  dismiss: "Dismiss",
  chatWith: "Chat",
} as const;

/** Return a number with its noun. */
function count(number: number, noun: string): string {
  return `${String(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return a probability in percent. */
export function percent(probability: number): string {
  const value = 100 * probability;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value.toFixed(value > 99.9 && value < 99.995 ? 2 : 1)} %`;
}

/** Return bytes in the unit that fits. */
export function bytes(count: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${value < 10 && unit ? value.toFixed(1) : value.toFixed(0)} ${units[unit] ?? ""}`;
}

/** Return milliseconds in the unit that fits. */
export function duration(ms: number): string {
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${((ms % 60_000) / 1000).toFixed(0)} s`;
}
