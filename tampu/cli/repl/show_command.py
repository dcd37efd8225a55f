"""`/show`: what the model is, and what was set."""

from __future__ import annotations

from tampu.cli.repl.help import SHOW
from tampu.cli.repl.session import Session
from tampu.cli.repl.wrapping import harmless
from tampu.cli.show import as_text
from tampu.store.modelfile import Modelfile, format_modelfile, parameter_texts


def shown(session: Session, what: str) -> str:
    """Return one thing of a conversation, or how to ask for one.

    Raises:
        TampuError: for a text that no Modelfile can hold.
    """
    info = session.model.info
    match what:
        case "info":
            own = Modelfile(parameters=session.parameters, system=session.system or None)
            return as_text(info, own)
        case "license":
            return harmless(info.license) or "The model states no licence."
        case "modelfile":
            return harmless(format_modelfile(session.modelfile())).rstrip()
        case "parameters":
            return "\n".join(parameter_texts(session.parameters)) or "No parameters were set."
        case "system":
            return harmless(session.system) or "No system message was set."
        case "template":
            return harmless(info.template) or "The model has no chat template."
        case _:
            return f"Usage:\n{SHOW}"
