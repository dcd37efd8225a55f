"""A template's tokens as nodes: a parser by recursive descent."""

from __future__ import annotations

from tampu.chat.gotemplate.functions import NAMES
from tampu.chat.gotemplate.lexing import Kind, Token, broken, tokens
from tampu.chat.gotemplate.nodes import (
    Action,
    Branch,
    Call,
    Chain,
    Field,
    Function,
    Jump,
    Literal,
    Node,
    Nodes,
    Operand,
    Pipeline,
    Template,
    Text,
    Variable,
)

MAX_DEPTH = 100

_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}
_KEYWORDS = {"if", "with", "range", "define", "template", "block", "break", "continue"}
_ENDS = (Kind.RIGHT, Kind.END)


def parse(source: str) -> Template:
    """Return a template.

    Raises:
        ModelFileError: for an invalid template or an unknown function, with the line.
    """
    parser = _Parser(source)
    nodes = parser.whole()
    return Template(source, nodes, parser.definitions)


class _Parser:
    """One walk over the tokens."""

    def __init__(self, source: str) -> None:
        self._tokens = list(tokens(source))
        self._place = 0
        self._depth = 0
        self._loops = 0
        self._names: list[str] = ["$"]
        self.definitions: dict[str, Nodes] = {}

    def whole(self) -> Nodes:
        """Return all nodes; between them are definitions."""
        nodes, end = self._list(is_top=True)
        if end is not None:
            raise broken(end.line, f"unexpected {{{{{end.text}}}}}")
        return nodes

    # -- tokens ----------------------------------------------------------------------------------

    def _peek(self) -> Token:
        return self._tokens[self._place]

    def _next(self) -> Token:
        token = self._tokens[self._place]
        if token.kind is not Kind.END:
            self._place += 1
        return token

    def _skip_space(self) -> Token:
        while self._peek().kind is Kind.SPACE:
            self._next()
        return self._peek()

    def _close(self, what: str) -> None:
        token = self._skip_space()
        if token.kind is not Kind.RIGHT:
            raise broken(token.line, f"unexpected {_shown(token)} in {what}")
        self._next()

    def _enter(self, line: int) -> None:
        """Count a level of nesting; the caller leaves it by `_depth -= 1`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise broken(line, f"more than {MAX_DEPTH} levels of nesting")

    # -- nodes -----------------------------------------------------------------------------------

    def _list(self, *, is_top: bool = False) -> tuple[Nodes, Token | None]:
        """Return nodes up to an `end` or `else`, which is returned too; None at the very end."""
        self._enter(self._peek().line)
        nodes: list[Node] = []
        end: Token | None = None
        while self._peek().kind is not Kind.END:
            token = self._next()
            if token.kind is Kind.TEXT:
                nodes.append(Text(token.text))
                continue
            word = self._skip_space()
            if word.kind is Kind.WORD and word.text in ("end", "else"):
                end = self._next()
                break
            node = self._action(word, is_top=is_top)
            if node is not None:
                nodes.append(node)
        self._depth -= 1
        return tuple(nodes), end

    def _action(self, word: Token, *, is_top: bool) -> Node | None:
        keyword = word.text if word.kind is Kind.WORD else ""
        if keyword not in _KEYWORDS:
            pipeline = self._pipeline("an action", most_names=1)
            self._close("an action")
            return Action(pipeline)
        self._next()
        match keyword:
            case "if" | "with" | "range":
                return self._branch(keyword, word)
            case "define":
                if not is_top:
                    raise broken(word.line, "a template is defined inside of another node")
                name = self._name(word)
                self._close(keyword)
                self.definitions[name] = self._body(word)
                return None
            case "break" | "continue":
                if not self._loops:
                    raise broken(word.line, f"{{{{{keyword}}}}} outside of a range")
                self._close(keyword)
                return Jump(keyword)
        return self._call(word)

    def _branch(self, keyword: str, word: Token) -> Node:
        known = len(self._names)
        pipeline = self._pipeline(keyword, most_names=2 if keyword == "range" else 1)
        self._close(keyword)
        self._loops += keyword == "range"
        body, end = self._list()
        self._loops -= keyword == "range"
        if end is None:
            raise broken(word.line, f"{{{{{keyword}}}}} has no {{{{end}}}}")
        otherwise: Nodes = ()
        if end.text == "else":
            otherwise = self._else(keyword, word)
        else:
            self._close("end")
        del self._names[known:]
        return Branch(keyword, pipeline, body, otherwise)

    def _else(self, keyword: str, word: Token) -> Nodes:
        following = self._skip_space()
        if following.kind is Kind.WORD and following.text in ("if", "with"):
            if following.text != keyword:
                raise broken(following.line, f"{{{{else {following.text}}}}} in {{{{{keyword}}}}}")
            self._next()
            self._enter(following.line)
            node = self._branch(keyword, following)
            self._depth -= 1
            return (node,)
        self._close("else")
        nodes, end = self._list()
        if end is None or end.text != "end":
            raise broken(word.line, f"{{{{{keyword}}}}} has no {{{{end}}}} after its {{{{else}}}}")
        self._close("end")
        return nodes

    def _body(self, word: Token) -> Nodes:
        """Return the nodes of a definition, in which other variables are known."""
        names, self._names = self._names, ["$"]
        loops, self._loops = self._loops, 0
        nodes, end = self._list()
        if end is None or end.text != "end":
            raise broken(word.line, f"{{{{{word.text}}}}} has no {{{{end}}}}")
        self._close("end")
        self._names, self._loops = names, loops
        return nodes

    def _call(self, word: Token) -> Call:
        """Return a `template`, or a `block`, which is one that is defined in its place."""
        name, pipeline = self._name(word), None
        if word.text == "block" or self._skip_space().kind is not Kind.RIGHT:
            pipeline = self._pipeline(word.text, most_names=1)
        self._close(word.text)
        if word.text == "block":
            nodes = self._body(word)
            self.definitions.setdefault(name, nodes)
        return Call(name, pipeline, word.line)

    def _name(self, word: Token) -> str:
        token = self._skip_space()
        if token.kind is not Kind.STRING:
            raise broken(token.line, f"{word.text} needs a name in quotes")
        return self._next().text

    # -- pipelines -------------------------------------------------------------------------------

    def _pipeline(self, where: str, *, most_names: int) -> Pipeline:
        line = self._skip_space().line
        names, is_assignment = self._variables(most_names)
        commands = [self._command(where)]
        while self._skip_space().text == "|" and self._peek().kind is Kind.MARK:
            self._next()
            commands.append(self._command(where))
        for operands in commands[1:]:
            if not isinstance(operands[0], Function):
                raise broken(line, "what stands behind a | must be a function")
        if not is_assignment:
            self._names.extend(names)
        return Pipeline(tuple(commands), names, is_assignment, line)

    def _variables(self, most: int) -> tuple[tuple[str, ...], bool]:
        """Return the variables in front of `:=` or `=`, and whether it is an assignment."""
        begin = self._place
        names: list[str] = []
        while self._skip_space().kind is Kind.VARIABLE:
            names.append(self._next().text)
            mark = self._skip_space()
            if mark.kind is Kind.MARK and mark.text in (":=", "=") and len(names) <= most:
                self._next()
                self._check_assigned(names, mark)
                return tuple(names), mark.text == "="
            if mark.kind is not Kind.MARK or mark.text != ",":
                break
            self._next()
        self._place = begin
        return (), False

    def _check_assigned(self, names: list[str], mark: Token) -> None:
        if "$" in names:
            raise broken(mark.line, "$ cannot be set")
        unknown = [name for name in names if name not in self._names]
        if mark.text == "=" and unknown:
            raise broken(mark.line, f"undefined variable {unknown[0]}")

    def _command(self, where: str) -> tuple[Operand, ...]:
        operands: list[Operand] = []
        while True:
            token = self._skip_space()
            if token.kind in _ENDS or (token.kind is Kind.MARK and token.text in "|)"):
                break
            operands.append(self._operand(where))
            after = self._peek()
            if after.kind not in (Kind.SPACE, Kind.RIGHT) and after.text not in ("|", ")"):
                raise broken(after.line, f"unexpected {_shown(after)} in {where}")
        if not operands:
            raise broken(self._peek().line, f"a value is missing in {where}")
        return tuple(operands)

    def _operand(self, where: str) -> Operand:
        operand = self._term(where)
        names: list[str] = []
        while self._peek().kind is Kind.FIELD:
            names.append(self._next().text)
        if not names:
            return operand
        if isinstance(operand, Field) and operand.names:
            return Field((*operand.names, *names))
        if isinstance(operand, Literal | Function | Field):
            raise broken(self._peek().line, f"unexpected .{names[0]} in {where}")
        return Chain(operand, tuple(names))

    def _term(self, where: str) -> Operand:
        token = self._next()
        match token.kind:
            case Kind.STRING:
                return Literal(token.text)
            case Kind.NUMBER:
                return Literal(token.number)
            case Kind.FIELD:
                return Field((token.text,))
            case Kind.VARIABLE if token.text in self._names:
                return Variable(token.text)
            case Kind.VARIABLE:
                raise broken(token.line, f"undefined variable {token.text}")
            case Kind.WORD:
                return _word(token)
            case Kind.MARK if token.text == ".":
                return Field()
            case Kind.MARK if token.text == "(":
                return self._parenthesis(token)
        raise broken(token.line, f"unexpected {_shown(token)} in {where}")

    def _parenthesis(self, token: Token) -> Pipeline:
        self._enter(token.line)
        pipeline = self._pipeline("parentheses", most_names=1)
        self._depth -= 1
        end = self._skip_space()
        if end.text != ")" or end.kind is not Kind.MARK:
            raise broken(token.line, "a parenthesis is not closed")
        self._next()
        return pipeline


def _word(token: Token) -> Operand:
    if token.text in _CONSTANTS:
        return Literal(_CONSTANTS[token.text])
    if token.text in NAMES:
        return Function(token.text)
    raise broken(token.line, f"function {token.text!r} is not known")


def _shown(token: Token) -> str:
    return repr(token.text) if token.text else token.kind.value
