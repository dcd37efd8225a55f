"""The parser of an answer's Markdown. HTML, links, images and addresses remain as written.

Other renderers leave HTML out, and with it `vector<int>`, and put addresses behind words.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline, autolink, escape, html_inline, image, link

_Rule = Callable[[StateInline, bool], bool]

# From the colon of an address to its end, without punctuation there, such as the ** after it.
_ADDRESS = re.compile(r"""(?<=[A-Za-z])://[^\s<>\[\]]*[^\s<>\[\]*_~`'".,;:!?)|]""")
_ESCAPABLE = "*_`~#<>|"


def markdown_parser() -> MarkdownIt:
    """Return a parser whose tokens have all of a text but the marks that are rendered."""
    parser = MarkdownIt().enable(["strikethrough", "table"])
    parser.disable(["entity", "newline", "reference"])  # all three would leave something out
    rules = parser.inline.ruler
    for rule in (link, image, autolink, html_inline):
        rules.at(rule.__name__, _as_written(rule))
    rules.at("escape", _escape)
    rules.before("escape", "address", _address)
    return parser


def _as_written(rule: _Rule) -> _Rule:
    """Return a rule that makes plain text of what another rule matches."""

    def matches(state: StateInline, silent: bool) -> bool:
        start = state.pos
        return rule(state, True) and _keep(state, start, silent=silent)

    return matches


def _address(state: StateInline, silent: bool) -> bool:
    """Match the address that a scheme begins; `_` in it is not emphasis."""
    found = _ADDRESS.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    start, state.pos = state.pos, found.end()
    return _keep(state, start, silent=silent)


def _escape(state: StateInline, silent: bool) -> bool:
    """Remove the backslash before a mark of Markdown, but not that of LaTeX or of a path."""
    return state.src[state.pos + 1 : state.pos + 2] in _ESCAPABLE and escape(state, silent)


def _keep(state: StateInline, start: int, *, silent: bool) -> bool:
    """Add the text from `start` as it is, unless only the end is wanted; return True."""
    if not silent:
        state.pending += state.src[start : state.pos]
    return True
