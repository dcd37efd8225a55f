"""`/save`: a conversation as a model, with its system message, parameters and messages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tampu.store.model import StoredMessage
from tampu.store.modelfile import Modelfile

if TYPE_CHECKING:
    from tampu.cli.repl.session import Session


def modelfile_of_session(session: Session) -> Modelfile:
    """Return the Modelfile that makes a model of a conversation; it has no pictures."""
    return Modelfile(
        sources=(session.known.name,),
        parameters=session.parameters,
        system=session.system or None,
        messages=tuple(
            StoredMessage(message["role"], message["content"]) for message in session.messages
        ),
    )


def save(session: Session, name: str) -> None:
    """Keep a conversation as a model.

    Raises:
        TampuError: if it cannot be written, or its name is none.
    """
    session.partner.save(name, modelfile_of_session(session))
    pictures = sum(len(message.get("images", ())) for message in session.messages)
    if pictures:
        print(f"warning: {pictures} picture(s) are not part of it", file=sys.stderr)
    print(f"Created new model '{name}'")
