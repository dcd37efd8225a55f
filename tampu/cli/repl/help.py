"""What the commands of a conversation say of themselves."""

from __future__ import annotations

COMMANDS = '''\
  /set              Change the conversation
  /show             What the model is, and what was set
  /load MODEL       Go on with another model, or a saved conversation
  /save MODEL       Keep this conversation as a model
  /clear            Forget the conversation
  /list             The models on this machine
  /bye              Leave
  /?, /help         This help; also /? set, /? show
  /? shortcuts      The keys

  """ begins and ends a message of several lines.
  ./picture.png in a message shows the picture to a model that can see.'''

SET = '''\
  /set parameter NAME VALUE  A parameter, such as temperature
  /set system TEXT           The system message, also in """
  /set format json           Answers are JSON; /set format SCHEMA: of that form
  /set noformat              Answers are anything
  /set think [LEVEL]         Think before answering; low, medium, high, max
  /set nothink               Answer at once
  /set verbose, quiet        With what each answer costs, or without
  /set wordwrap, nowordwrap  Break lines between words, or leave them
  /set markdown, nomarkdown  Render Markdown, or show it as it is
  /set history, nohistory    Keep messages for the next session, or not'''

SHOW = """\
  /show info        What the model is
  /show license     Its licence
  /show modelfile   The Modelfile of this conversation
  /show parameters  The parameters that are set
  /show system      The system message
  /show template    The model's chat template"""

SHORTCUTS = """\
  Ctrl-A, Ctrl-E    To the beginning or the end of the line
  Ctrl-B, Ctrl-F    A character back or forward; also the arrows
  Alt-B, Alt-F      A word back or forward
  Ctrl-K, Ctrl-U    Cut to the end or to the beginning of the line
  Ctrl-W            Cut the word before the cursor
  Ctrl-Y            Put back what was cut
  Ctrl-P, Ctrl-N    The message before or after, in the history; also the arrows
  Ctrl-R            Search the history
  Ctrl-J, Alt-Enter A new line, without sending
  Ctrl-G            Write the message in your editor ($OLLAMA_EDITOR, $VISUAL, $EDITOR)
  Ctrl-L            Clear the screen
  Ctrl-Z            Suspend the program
  Tab               Complete a command, its argument, or the name of a model
  Ctrl-C            Abandon the line; stop an answer
  Ctrl-D            Leave"""

HELP = {"": COMMANDS, "set": SET, "show": SHOW, "shortcuts": SHORTCUTS}

# What may follow: for completions.
TOPICS = {
    "": (
        "/?", "/bye", "/clear", "/exit", "/help", "/list", "/load", "/save", "/set", "/show",
    ),
    "/set": (
        "format", "history", "markdown", "noformat", "nohistory", "nomarkdown", "nothink",
        "nowordwrap", "parameter", "quiet", "system", "think", "verbose", "wordwrap",
    ),
    "/set think": ("low", "medium", "high", "max"),
    "/set format": ("json",),
    "/show": ("info", "license", "modelfile", "parameters", "system", "template"),
    "/?": ("set", "show", "shortcuts"),
    "/help": ("set", "show", "shortcuts"),
}  # fmt: skip
