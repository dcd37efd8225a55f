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
  loading: (model: string) => `Loading ${model}…`,
  states: {
    stopped: "Stopped.",
    interrupted: "Interrupted: the page was closed or reloaded.",
    limit: "Ended early, at a limit.",
    failed: "",
  },
  limits: {
    tokens: (tokens: number) => `Ended at the limit of ${count(tokens, "token")}.`,
    context: "Ended early: the context is full.",
    repetition: "Ended early: one token was repeated too often. The parameter num_predict lifts this limit.",
    time: "Ended at the limit of time.",
    indent: "Ended where the indentation ends.",
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
  keyRefused: "The server does not accept this key.",
  keyMissing: "The server needs an API key. Settings has a field for it.",
  theme: "Theme",
  themes: { system: "as the system", light: "light", dark: "dark" },
  keys: "Keyboard",
  server: "Server",
  pull: "Pull",
  tryAgain: "Try again",
  pullHint: "qwen3:4b or hf.co/user/repo",
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
  wouldTake: (size: string) => `Would take about ${size} of memory`,
  needs: { weights: "weights", cache: "cache", graphs: "graphs" },
  deviceTakes: (device: string, needs: string, available: string) => `${device}: ${needs}; ${available} available`,
  fits: (context: number, slots: number) => `It fits, with a context of ${count(context, "token")} in ${count(slots, "slot")}.`,
  doesNotFit: (why: string) => `It does not fit beside what is in memory now. ${why}`,
  layers: "Layers",
  placementColumns: ["Device", "Layers", "Weights", "Cache", "Graphs", "Also"],
  expertsOf: (layers: string) => `experts of ${layers}`,
  tokenEmbeddings: "token embeddings",
  layer: (number: number) => `Layer ${String(number)}`,
  layersText: (layers: number, tensors: number, size: string, types: string) =>
    `${count(layers, "layer")}, ${count(tensors, "tensor")}, ${size}: ${types}.`,
  layerColumns: ["Layer", "Parts", "Types", "Size"],
  noLayer: "none",
  parts: { attention: "attention", recurrent: "recurrent", feedForward: "feed-forward", experts: "experts", other: "norms and other" },
  asTable: "As a table",
  notLoadedModel: (name: string) => `${name} could not be loaded`,
  deleteModel: (name: string) => `Delete the model ${name}? Its files are removed from this machine.`,
  noModelToChoose: "no model",
  noModels: "No models yet. Pull one above.",
  memory: (size: string) => `${size} of memory in use`,
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
  checking: "Checking…",
  emptyFormat: "The output format is empty.",
  schemaNotObject: "A JSON schema is an object.",
  cannotSend: (problem: string) => `The output format or the tools cannot be sent: ${problem}`,
  tools: "Tools",
  toolsLabel: "Functions that the model may call, as JSON; one with a url is answered there",
  toolsHint: '[{"name": "weather", "description": "The weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]',
  notFunction: (at: number) => `Tool ${String(at + 1)} is not a function: an object with a name.`,
  noFunctionName: (at: number) => `Function ${String(at + 1)} has no name.`,
  parametersNotObject: (name: string) => `The parameters of ${name} are not an object.`,
  callOf: (name: string) => `Call of ${name}`,
  resultOf: (name: string) => `Result of ${name}`,
  sendResults: "Send the results",
  waitingForResults: "Waiting for the results…",
  sendCalls: "Send the calls",
  resultFrom: (url: string) => `Empty: what ${url} answers`,
  toolUrl: "Send calls to a URL?",
  toolUrls: "Calls of tools are sent to",
  allow: "Allow",
  forbid: (url: string) => `Send no calls to ${url}`,
  allowUrls: (urls: string[]) =>
    `The call goes to ${urls.join(" and ")}, with what the model writes as its arguments. Later calls of this tool go there without a question; Settings has the list.`,
  notToolUrl: (name: string) => `The URL of ${name} does not begin with http:// or https://.`,
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
  notLoaded: "This view could not be loaded. Is the server running?",
  reload: "Reload the page",
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
  table: "Table",
  copyCode: "Copy code",
  brand: "tampu",
  yes: "true",
  no: "false",
  uses: { sampling: "Sampling", generation: "The answer", loading: "Loading" },
  usage: {
    tokens: (tokens: number) => count(tokens, "token"),
    tokensAndEnd: (tokens: number) => `${count(tokens, "token")} and the end`,
    speed: (rate: number) => `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`,
    loaded: (ms: number) => `loaded in ${duration(ms)}`,
    firstToken: (ms: number) => `first after ${duration(ms)}`,
    cached: (cached: number, prompt: number) => `${String(cached)} of ${String(prompt)} prompt tokens cached`,
    dropped: (tokens: number) => `${String(tokens)} tokens did not fit the context`,
  },
  facts: { engine: "engine", context: "context", memory: "memory", contextInMemory: "context in memory" },
  modelTexts: { parameters: "parameters", system: "system", template: "template", modelfile: "modelfile", license: "license" },
  keyActions: {
    send: "Send the message",
    newLine: "New line in the message",
    stopOrLeave: "Stop the answer, or leave the field",
    write: "Write a message",
    next: "Next conversation",
    previous: "Previous conversation",
    back: "Back to the chat",
    edit: "Edit the last message",
    regenerate: "Answer the last message again",
    earlier: "Earlier version of the last answer",
    later: "Later version of the last answer",
    sideBySide: "Versions of the last answer side by side",
    theme: "Next theme",
    help: "Show this list",
  },
  unreachable: "The server cannot be reached. Is it running?",
  endedEarly: "The stream ended early. Has the server stopped?",
  responseNotObject: "The response is not an object.",
  lineNotJson: (line: string) => `A line of the response is not JSON: ${line}`,
  lineNotObject: (line: string) => `A line of the response is not an object: ${line}`,
  retryAfter: (message: string, seconds: number) => `${message}. Try again in ${seconds} s.`,
  unreadable: "The file cannot be read.",
  databaseFailed: "The browser's database failed.",
  importing: {
    notJson: "the file is not JSON",
    noConversations: "the file has no conversations of tampu",
    otherVersion: "the file is of another version of tampu",
    noTurnBefore: "a turn has no turn before it",
    wrong: (what: string) => `${what} is wrong`,
    wrongOption: (name: string) => `the option ${name} is wrong`,
    notObject: (what: string) => `${what} is not an object`,
    notList: (what: string) => `${what} is not a list`,
    notText: (what: string) => `${what} is not a text`,
    notNumber: (what: string) => `${what} is not a number`,
    conversation: "a conversation",
    turn: "a turn",
    call: "a call",
    token: "a token",
    byte: "a byte",
    textOfFormat: "the text of the format",
  },
} as const;

/** The texts of the view from inside. */
export const INSIDE = {
  title: "Inside",
  pause: "Pause",
  resume: "Resume",
  zoomIn: "Zoom in",
  zoomOut: "Zoom out",
  earlier: "Earlier",
  later: "Later",
  save: "Save trace",
  saveHint: "Save the last minute as a trace for Perfetto",
  model: "Model",
  waitingForServer: "Waiting for the server…",
  noModel: "No model is in memory. Load one in Models, or ask one something.",
  silent: "This model's engine does not say what it does: only latencies and memory are known.",
  lost: "The connection was lost. Trying again…",
  timeline: "Batches",
  rates: "Tokens per second",
  latencies: "Latencies",
  first: "Time to first token",
  between: "Time between tokens",
  memory: "Memory",
  cells: "Cache cells",
  cellsOf: (kind: string, window: number | null) =>
    kind === "states" ? "States of recurrent layers" : window ? `Layers with a window of ${grouped(window)}` : "Layers that read everything",
  tree: "Prefix tree",
  byOwner: "By owner",
  byAge: "By age",
  colour: "Colour",
  prompt: "prompt",
  answer: "answer",
  waited: "waiting",
  waits: "waiting",
  newGraph: "new graph",
  device: "device",
  request: (number: number) => `request ${number}`,
  shared: "several requests",
  cached: "cached",
  empty: "empty",
  newest: "freed just now",
  oldest: "freed long ago",
  inUse: (used: number, total: number) => `${grouped(used)} of ${grouped(total)} in use`,
  facts: {
    running: "running",
    waiting: "waiting",
    prompt: "prompt tokens/s",
    answer: "answer tokens/s",
    batch: "requests/batch",
    step: "per step",
    python: "Python's share",
    graphs: "graphs reused",
    cost: "cost of looking",
  },
  timelineText: (seconds: number, batches: number, requests: number, prompt: number, answer: number, waiting: number) =>
    `Last ${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s: ${count(batches, "batch", "batches")}, ${count(requests, "request")}, ` +
    `${count(prompt, "prompt token")}, ${count(answer, "answer token")}.${waiting ? ` ${count(waiting, "request waits", "requests wait")}.` : ""}`,
  ratesText: (prompt: number, answer: number) =>
    `Now ${grouped(Math.round(prompt))} prompt and ${grouped(Math.round(answer))} answer tokens per second.`,
  latencyText: (total: number, half: number | null, most: number | null) =>
    total ? `${grouped(total)} measured; half under ${bound(half)}, 95 % under ${bound(most)}.` : "Nothing measured yet.",
  lookedAt: (seconds: number) => (seconds < 0.05 ? "now" : `${seconds.toFixed(1)} s ago`),
  late: (seconds: number) => `The model told this ${seconds.toFixed(1)} s ago: it computes a long step.`,
  legend: {
    number: "A number counts tokens.",
    shared: "×n: shared by n running requests",
    request: "of one running request",
    cached: "in the cache",
    lost: "no longer in the cache",
    state: "kept state",
  },
  treeText: (nodes: number, tokens: number) => `${count(nodes, "branch", "branches")}, ${count(tokens, "token")}.`,
  sharing: (requests: number, tokens: number) => `${requests} requests share their first ${count(tokens, "token")}.`,
  hidden: (nodes: number) => `${count(nodes, "branch", "branches")} more.`,
  states: (states: number) => count(states, "state"),
  nodeText: (tokens: number, start: number, cached: number) => `${count(tokens, "token")} from ${grouped(start)}, ${grouped(cached)} cached`,
  sharedBy: (requests: number) => count(requests, "request"),
  tableOfTree: "As a table",
  columns: ["From", "Tokens", "Cached", "Requests", "States"],
  milliseconds: (ms: number) => `${ms.toFixed(1)} ms`,
  seconds: (seconds: number) => `${seconds} s`,
  ago: (seconds: number) => (seconds < 0.05 ? "now" : `−${seconds.toFixed(seconds < 10 ? 1 : 0)} s`),
  size: bytes,
} as const;

/** Return a number with its thousands set apart. */
export function grouped(number: number): string {
  return number.toLocaleString("en-US");
}

/** Return a number with its noun. */
function count(number: number, noun: string, nouns = `${noun}s`): string {
  return `${grouped(number)} ${number === 1 ? noun : nouns}`;
}

function bound(seconds: number | null): string {
  if (seconds === null) return "?";
  return seconds === Infinity ? "more than was counted" : duration(seconds * 1000);
}

/** Return a number with this many decimals; there is no "-0". */
export function decimal(number: number, digits: number): string {
  return number.toFixed(digits).replace(/^-(?=[0.]*$)/, "");
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

/** Return a time since 1970 as of a clock: of today, else with its day. */
export function moment(ms: number): string {
  const time = new Date(ms);
  const isToday = time.toDateString() === new Date().toDateString();
  const day: Intl.DateTimeFormatOptions = isToday ? {} : { day: "numeric", month: "short", year: "numeric" };
  return time.toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Return milliseconds in the unit that fits. */
export function duration(ms: number): string {
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min${seconds % 60 ? ` ${seconds % 60} s` : ""}` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
