"""The help texts of a conversation's commands."""

from __future__ import annotations

COMMANDS = '''\
  /set              Change a parameter or a setting
  /show             Show the model, its parameters or the Modelfile
  /load MODEL       Load another model or a saved conversation
  /save MODEL       Save this conversation as a model
  /clear            Clear the conversation
  /list             List the models on this machine
  /bye              Leave
  /?, /help         Show this help; also /? set, /? show
  /? shortcuts      Show the keys

  """ starts and ends a message of several lines.
  ./image.png or ./sound.wav in a message adds the file, if the model takes images or sounds.'''

SET = '''\
  /set parameter NAME VALUE  Set a parameter, such as temperature
  /set system TEXT           Set the system message; """ as in messages
  /set format json           Answer in JSON; /set format SCHEMA: as a JSON schema says
  /set noformat              Answer in any form
  /set think [LEVEL]         Reason before answering: low, medium, high or max
  /set nothink               Answer without reasoning
  /set verbose, quiet        Print token counts and durations, or do not
  /set wordwrap, nowordwrap  Break lines between words, or do not
  /set markdown, nomarkdown  Render Markdown, or print it as it is
  /set history, nohistory    Keep messages for the next session, or do not'''

SHOW = """\
  /show info        Show the details of the model
  /show license     Show the model's license
  /show modelfile   Show the Modelfile of this conversation
  /show parameters  Show the parameters that are set
  /show system      Show the system message
  /show template    Show the model's chat template"""

SHORTCUTS = """\
  Ctrl-A, Ctrl-E    Go to the start or the end of the line
  Ctrl-B, Ctrl-F    Go back or forward by a character; also the arrows
  Alt-B, Alt-F      Go back or forward by a word
  Ctrl-K, Ctrl-U    Cut to the end or to the start of the line
  Ctrl-W            Cut the word before the cursor
  Ctrl-Y            Paste what was cut
  Ctrl-P, Ctrl-N    Go to the previous or next message; also the arrows
  Ctrl-R            Search the history
  Ctrl-J, Alt-Enter Start a new line without sending
  Ctrl-G            Edit the message in your editor ($OLLAMA_EDITOR, $VISUAL, $EDITOR)
  Ctrl-L            Clear the screen
  Ctrl-Z            Suspend the program
  Tab               Complete a command, its argument, or the name of a model
  Ctrl-C            Discard the line; stop an answer
  Ctrl-D            Leave"""

HELP = {"": COMMANDS, "set": SET, "show": SHOW, "shortcuts": SHORTCUTS}

# What may follow, for completion.
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
