"""The conversation of `tampu run`.

- select_backend.py, backend.py: a running server, or the model within this program
- session.py: messages and parameters, and the parts of an answer
- conversation.py, set_command.py, help.py: the input loop and the commands with a slash
- reader.py, keys.py: the input line, its history, keys and completion
- media_files.py: paths of images and sounds in a message
- printing.py, wrapping.py, markdown.py, markdown_parser.py, spinner.py: the output
"""
