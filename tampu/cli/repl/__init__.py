"""The conversation of `tampu run`.

- select_backend.py, backend.py: the model, in a running server or in this program
- session.py: messages and parameters, and the parts of an answer
- conversation.py: reads messages and commands until the user leaves
- set_command.py, show_command.py, help.py: commands that begin with a slash
- reader.py, keys.py: the input line, its history, keys and completions
- images.py: paths of images in a message
- printing.py, wrapping.py, markdown.py, spinner.py: the output
"""
