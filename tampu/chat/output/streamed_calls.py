r"""Calls whose arguments are JSON, passed on while they are written.

What comes before the arguments is one pattern for each family (`CallSyntax.header`):

    <tool_call>\n{"name": "f", "arguments":  {"city": "Rom   e"}   }\n</tool_call>
                    header                    fragments           closing

Text that does not begin with a header is left to the family's reader of whole calls. Arguments
extend to the bracket that closes them, so that a tag in a string does not end a call. Line breaks
and other control characters in strings, which JSON has not, are escaped. If arguments are not JSON,
the call extends to the tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tampu.chat.output.literals import escaped_controls
from tampu.chat.output.stream_parser import Parts, Reader, Script, WrittenCall

_MAX_HEADER = 1_024  # characters; a longer one is read with the whole call
_OUTSIDE_STRING = re.compile(r'["{}\[\]]|[^\s\w.:,+\-]')
_IN_STRING = re.compile(r'["\\\x00-\x1f]')

_FIELDS = r'(?:\s*,\s*"\w+"\s*:\s*"[^"\\]*")*'  # after the arguments
_OBJECT = (
    _FIELDS + r'[\s\[\]}},;]*\{{\s*(?:"function"\s*:\s*\{{\s*)?'
    r'(?:"(?:type|id|tool_call_id)"\s*:\s*"[^"\\]*"\s*,\s*(?:"function"\s*:\s*\{{\s*)?)*'
    r'"(?:name|tool_name)"\s*:\s*"{}"\s*,\s*"(?:arguments|parameters|args)"\s*:\s*(?=\{{)'
)
JSON_HEADER = re.compile(_OBJECT.format(r'([^"\\]+)'))
# Command R's tool for a direct answer, which is not a tool call.
FENCED_HEADER = re.compile(_OBJECT.format(r'(?!directly_answer")([^"\\]+)'))
MISTRAL_HEADER = re.compile(
    rf"{JSON_HEADER.pattern}"
    r"|\s*(?:\[TOOL_CALLS\])?\s*([\w.:/\-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)"
)
DEEPSEEK_HEADER = re.compile(
    r"\s*(?:```)?\s*(?:<｜tool▁call▁end｜>)?\s*(?:<｜tool▁call▁begin｜>)?\s*"
    r"(?:function<｜tool▁sep｜>\s*([^\s`]+)\s*```json|([^\s<]+)<｜tool▁sep｜>)\s*(?=\{)"
)
KIMI_HEADER = re.compile(
    r"\s*(?:<\|tool_call_end\|>)?\s*<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<]+?)(?::\d+)?"
    r"\s*<\|tool_call_argument_begin\|>\s*(?=\{)"
)
ARGUMENTS = re.compile(r"\s*(?=\{)")  # a header without a name
# What may follow the arguments of a call: more fields, brackets, fences.
_CLOSING = re.compile(
    _FIELDS + r"[\s\]},;]*`{0,3}\s*(?:<(?:｜tool▁call▁end｜|\|tool_call_end\|)>)?\s*"
)
_FIELDS_AFTER = re.compile(_FIELDS)
_ID = re.compile(
    r'"(?:id|tool_call_id)"\s*:\s*"([^"\\]*)"|\[CALL_ID\]([^\[{]*)'
    r"|<\|tool_call_begin\|>\s*([^\s<]+)"
)
_BRACKETS = ("[", "{", "<", '"')
_BEGUN_CALL = re.compile(r"\s*(?:[\[{<\"]|[\w.:/\-]*$|[\w.:/\-]+\s*[(\[{<\n])")


class JSONScanner:
    """Finds the end of a JSON object that comes in pieces; its values are not checked.

    Attributes:
        is_closed: whether the object is complete.
        is_broken: whether a character cannot be in JSON: the next one, where `scan` has stopped.
            If it is called again, it goes on.
    """

    def __init__(self) -> None:
        """Start before the first bracket."""
        self.is_closed = self.is_broken = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def scan(self, text: str) -> tuple[int, str]:
        """Return how many characters of the next piece belong to the object, and these as JSON."""
        position = written = 0
        escaped: list[str] = []
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            match = (_IN_STRING if self._in_string else _OUTSIDE_STRING).search(text, position)
            if match is None:
                position = len(text)
                break
            position = match.end()
            character = match.group()
            if self._in_string and character < " ":
                escaped += (text[written : match.start()], escaped_controls(character))
                written = position
            elif not self._take(character) and not self.is_broken:
                self.is_broken = True
                position = match.start()
                break
            elif self._depth == 0 and not self._in_string:
                self.is_closed = True
                break
        if escaped:
            return position, "".join([*escaped, text[written:position]])
        return position, text[:position]

    def _take(self, character: str) -> bool:
        """Take a special character; return whether it can be there."""
        match character:
            case '"':
                self._in_string = not self._in_string
            case "\\" if self._in_string:
                self._is_escaped = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
            case _:
                return False
        return True


def read_streamed(
    reader: Reader,
    parts: Parts,
    header: re.Pattern[str],
    tags: tuple[str, str],
    read: Callable[[str], list[WrittenCall]],
) -> Script[bool]:
    """Read the calls up to the end tag if they begin with a header; else read nothing.

    Args:
        reader: after the first tag.
        parts: gets the calls.
        header: what comes before a call's arguments; its first group is the name.
        tags: around the calls; the second is "" if they extend to the end of the output.
        read: the calls in what follows those with a header; raises ValueError for other text.

    Returns:
        Whether there was a call with a header.
    """
    begin, end = tags
    ends = (end,) if end else ()
    written = begin
    while found := (yield from next_header(reader, header, ends)):
        reader.drop(found.end())
        name = next(filter(None, found.groups()))
        id = _read_ids(found.group(), parts)
        tag = yield from read_arguments(reader, parts, name, written + found.group(), ends, id)
        if tag is not None:
            return True
        written = ""
    if written:
        return False
    rest, tag = yield from reader.take(ends)
    _add_rest(rest, parts, read, end, is_cut=tag is None and reader.is_cut)
    return True


def _read_ids(text: str, parts: Parts) -> str | None:
    """Return the id in the header of a call; one before it is that of the call before."""
    fields = _FIELDS_AFTER.match(text)
    end = fields.end() if fields else 0
    if before := _ID.search(text, 0, end):
        parts.set_id(before[1])
    own = _ID.search(text, end)
    return next(filter(None, own.groups()), None) if own else None


def next_header(
    reader: Reader, header: re.Pattern[str], ends: tuple[str, ...]
) -> Script[re.Match[str] | None]:
    """Return the header that the text before the first of the tags begins with."""
    while True:
        text, is_final = reader.peek(ends)
        found = header.match(text[:_MAX_HEADER])
        if found or is_final or len(text) >= _MAX_HEADER:
            return found
        yield


def read_arguments(
    reader: Reader,
    parts: Parts,
    name: str,
    written: str,
    ends: tuple[str, ...],
    id: str | None = None,
) -> Script[str | None]:
    """Pass on the arguments of a call; return the tag that ended it if they are not JSON.

    `written` is the text of the call before them, if it is shown where the call is broken.
    """
    parts.begin_call(name, written, id)
    scanner = JSONScanner()

    def pass_on(text: str) -> None:
        length, arguments = (0, "") if scanner.is_closed else scanner.scan(text)
        if length:
            parts.arguments(arguments, text[:length])
        parts.after_arguments(text[length:])

    while True:
        length, arguments = scanner.scan(reader.text)
        if length:
            parts.arguments(arguments, reader.text[:length])
            reader.drop(length)
        if scanner.is_closed or scanner.is_broken or reader.has_ended:
            break
        yield
    if scanner.is_closed and parts.complete_call():
        return None
    tag = None
    if scanner.is_closed or scanner.is_broken:
        tag = yield from reader.until(ends, pass_on)
    if tag is not None and written:
        parts.after_arguments(tag)
    parts.give_up_call(is_cut=reader.is_cut and not scanner.is_closed and tag is None)
    return tag


def looks_like_call(text: str) -> bool:
    """Whether a text that was cut off is the beginning of a call in some format."""
    return _BEGUN_CALL.match(text) is not None


def _add_rest(
    rest: str, parts: Parts, read: Callable[[str], list[WrittenCall]], end: str, *, is_cut: bool
) -> None:
    """Add what follows the last call with a header: more calls or text."""
    closing = _CLOSING.match(rest)
    if closing:
        _read_ids(closing.group(), parts)
        rest = rest[closing.end() :]
    if not rest or end.startswith(rest) or (is_cut and rest.startswith(_BRACKETS)):
        return
    try:
        parts.calls(read(rest))
    except ValueError:
        parts.content(rest)
