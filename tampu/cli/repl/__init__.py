"""The conversation of `tampu run`.

- desk.py, shelf.py, other_engine.py: the model that answers, where models come from, llama.cpp
- session.py: messages and parameters, and an answer's parts as they come
- pictures.py: paths of pictures in a message
- conversation.py: reads messages and commands until it is told to leave
- commands.py, assigning.py, showing.py, manual.py: what begins with a slash
- reader.py, keys.py, silence.py: the line on the terminal, its history, keys, completions
- printing.py, wrapping.py, markdown.py, waiting.py: what is seen of an answer
- saving.py: a conversation as a model
"""
