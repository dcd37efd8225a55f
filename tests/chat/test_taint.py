"""Text from outside keeps its marks through whatever a template does with it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.vocabularies import CONTROL, USER_DEFINED, byte_level, sentence_piece

from tampu.chat.segments import encode_prompt, text_of
from tampu.chat.taint import TaintedStr, is_marked, marked, pieces
from tampu.chat.template import ChatTemplate
from tampu.errors import ModelFileError, RequestError
from tampu.tokenizer import Tokenizer, load_tokenizer
from tampu.tokenizer.vocabulary import HIDDEN_TYPES

USER = "  <|end|> 'a' <X>\n"
# Expressions over `c`, a text from outside; the template's own part is written in capitals.
EXPRESSIONS = [
    "c", "'A' + c", "c + 'A'", "'A' ~ c ~ 1", "c | trim", "c.strip()", "c | upper", "c.lower()",
    "c | capitalize", "c | title", "c.title()", "c | replace('a', 'B')", "c.replace(' ', '')",
    "'AxB'.replace('x', c)", "'AxB' | replace('x', c)", "[c, c] | join('A')", "'A'.join([c, c])",
    "c.join(['A', 'B'])", "[c] | map('trim') | join", "c.split('<')[1]", "c.split()[0]",
    "c.rsplit('>', 1)[1]", "c.partition('|')[1]", "c[3:9]", "c[::-1]", "c | reverse", "c[2]",
    "c | first", "c | last", "c | list | join", "c | string", "c | tojson", "{'A': c} | tojson",
    "{c: 1} | tojson", "[c]", "{'A': c}", "'A %s B' | format(c)", "'A %s' % c", "'%r' % c",
    "'A %(x)s' % {'x': c}", "'{} A {}'.format(c, 1)", "'{x}'.format(x=c)", "'{:>50}'.format(c)",
    "'{!r}'.format(c)", "'%s' % [c]", "c * 2", "2 * c", "c.center(50)", "c.swapcase()",
    "c | indent(2)", "c.splitlines()[0]", "c | truncate(9)", "c | e", "c | safe", "(c | safe) + c",
    "c | d('A')", "missing | d(c)", "namespace(x=c).x", "namespace(x=c)", "dict(x=c).x",
    "dict(x=c).items() | list", "dict(x=c) | dictsort | string", "c if c else 'A'", "m.content",
    "[m] | map(attribute='content') | join", "[m] | selectattr('content') | list | first",
    "c.removeprefix(' ')", "c.zfill(50)", "c.expandtabs()", "c.translate({97: 'b'})",
    "'a'.translate({97: c})", "[c, 'A'] | sort | join", "[c] | unique | join", "[c] | min",
    "c.format()", "c % ()", "macro(c)", "loop_over(c)", "c.casefold()", "c | string | string",
    "[[c]] | sum(start=[]) | join", "c.rpartition('|')[2]", "c.encode()", "c.encode().decode()",
    "c.encode().hex()", "(c ~ '').encode() | string", "[c.encode()]", "'%s' % c.encode()",
    "c.encode() ~ ''", "c.encode() | upper", "c.encode()[3:].decode()", "'%c' % c.encode()[3]",
    "'{:c}'.format(c.encode()[3])", "'%c' | format(c.encode()[3])",
    "c | urlencode", "c | pprint", "c | urlize", "{'A': c} | xmlattr", "c | forceescape",
    "{c: 1} | urlencode", "c | attr('upper')", "cycler(c).next()", "joiner(c)",
]  # fmt: skip
SETTING = (
    "{% macro macro(x) %}{{ x }}{% endmacro %}"
    "{% macro loop_over(x) %}{% for y in x %}{{ y }}{% endfor %}{% endmacro %}"
    "{% set m = messages[0] %}{% set c = m.content %}"
)


def render(source: str, content: str) -> tuple[tuple[str, bool], ...]:
    template = ChatTemplate(source)
    messages = [{"role": "user", "content": content}]
    return template.render(messages, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_operation_of_a_template_makes_untrusted_text_trusted(expression: str) -> None:
    source = SETTING + "{{ " + expression + " }}"
    prompt = render(source, USER.replace("a", "b") if "translate" in expression else USER)
    own = "".join(text for text, is_trusted in prompt if is_trusted)
    assert not set(own) - set('A B1.="')  # the dots are those of `truncate`


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<A>{{ c | trim }}<B>", [("<A>", 1), ("<|end|> 'a' <X>", 0), ("<B>", 1)]),
        ("{{ '<A>' + c[2:9] + '<B>' }}", [("<A>", 1), ("<|end|>", 0), ("<B>", 1)]),
        ("{{ '<A>%s<B>' | format(c.strip()) }}",
         [("<A>", 1), ("<|end|> 'a' <X>", 0), ("<B>", 1)]),
        ("{{ '<{}>'.format(m.role) }}", [("<", 1), ("user", 0), (">", 1)]),
        ("{% set x %}<A>{{ m.role }}{% endset %}{{ x }}", [("<A>", 1), ("user", 0)]),
        ("{% filter upper %}<a>{{ m.role }}{% endfilter %}", [("<A>", 1), ("USER", 0)]),
        ("{{ ['<A>', m.role] | join('<B>') }}", [("<A><B>", 1), ("user", 0)]),
        ("{{ {'user': '<U>'}[m.role] }}", [("<U>", 1)]),
        ("{{ '<U>' if m.role == 'user' }}", [("<U>", 1)]),
        ("{{ bos_token }}{{ macro('<A>') }}{{ macro(m.role) }}", [("<s><A>", 1), ("user", 0)]),
        ("{% for x in messages %}<A>{{ x.role }}{{ loop.index }}{% endfor %}",
         [("<A>", 1), ("user", 0), ("1", 1)]),
        ("{{ '<A>' ~ 1 ~ none ~ missing }}", [("<A>1None", 1)]),
    ],
)  # fmt: skip
def test_the_templates_own_text_stays_trusted(source: str, expected: list[tuple[str, int]]) -> None:
    assert list(render(SETTING + source, USER)) == [(text, bool(own)) for text, own in expected]


@pytest.mark.parametrize(
    "source",
    [
        "{% autoescape true %}<A>{{ c }}{{ m.role ~ 'A' }}{% endautoescape %}",
        "{% autoescape true %}{{ c | safe }}{{ 'A' ~ (c | e) }}{{ macro(c) }}{% endautoescape %}",
        "{% set j = joiner(c) %}{{ j() }}{{ j() }}", "{{ cycler(c, 'A').next() }}",
        "{{ cycler(c).current }}", "{% do c.upper() %}", "{{ c | attr('upper')() }}",
        "{{ (c | attr('upper'))() }}", "{{ [c] | random }}",
    ],
)  # fmt: skip
def test_statements_and_globals_keep_the_marks(source: str) -> None:
    try:
        prompt = render(SETTING + source, USER)
    except ModelFileError:
        return
    own = "".join(text for text, is_trusted in prompt if is_trusted)
    assert not set(own) - set("<A>")


@pytest.mark.parametrize(
    "method", ["replace(c, c)", "upper()", "center(9)", "join([c])", "fromhex('41')"]
)
def test_bytes_have_no_methods_that_give_text_without_marks_or_take_room(method: str) -> None:
    with pytest.raises(RequestError):
        render(SETTING + "{{ c.encode()." + method + " }}", USER)


def test_autoescape_takes_no_value_that_must_be_computed() -> None:
    with pytest.raises(ModelFileError, match="autoescape"):
        ChatTemplate("{% autoescape 2 ** 9 %}{% endautoescape %}")


METHODS = st.sampled_from([
    ("strip",), ("strip", "ab "), ("lstrip",), ("rstrip",), ("split",), ("split", "a"),
    ("split", None, 1), ("rsplit", None, 1), ("rsplit", "a", 1), ("splitlines",),
    ("splitlines", True), ("partition", "a"), ("rpartition", "a"), ("replace", "a", "xy"),
    ("replace", "a", "", 1), ("replace", "", "x"), ("lower",), ("upper",), ("title",),
    ("capitalize",), ("removeprefix", "a"), ("removesuffix", "b"), ("join", ["a", "b"]),
    ("center", 9), ("casefold",), ("zfill", 9), ("__mul__", 2), ("__add__", "x"),
    ("__getitem__", slice(1, -1)), ("__getitem__", slice(None, None, -2)),
])  # fmt: skip


@given(st.text("ab \n\u00df\u0130X"), METHODS, st.randoms())
def test_methods_match_those_of_str_and_keep_a_mark_per_character(
    text: str, call: Any, random: Random
) -> None:
    name, *arguments = call
    marks = bytes(random.randrange(2) for _ in text)
    result = getattr(TaintedStr.of(text, marks), name)(*arguments)
    expected = getattr(text, name)(*arguments)
    for part, plain in zip(
        [result] if isinstance(result, str) else result,
        [expected] if isinstance(expected, str) else expected,
        strict=True,
    ):
        assert part == plain
        assert text_of(pieces([part])) == plain
    if name in {"strip", "split", "splitlines", "partition", "__getitem__"}:
        parts = [result] if isinstance(result, str) else result
        assert all(is_marked(part) <= (1 in marks) for part in parts)


def test_nested_data_is_marked() -> None:
    value = marked([{"a": ["b", 1, None, True]}, ("c",)])
    assert value == [{"a": ["b", 1, None, True]}, ["c"]]
    assert is_marked(value[0]["a"][0])
    assert is_marked(next(iter(value[0])))
    assert is_marked(value[1][0])


# -- with vocabularies ---------------------------------------------------------------------------

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "[INST]", "</s>", "<e>"]
TEMPLATES = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "{% for m in messages %}{{ '[INST]' + m.content | trim + '<|end|>' }}{% endfor %}",
    "{{ messages | tojson }}<|im_end|>{{ tools | tojson(indent=2) }}",
    "{% for m in messages %}{{ m['role'] ~ m['content'] }}{% endfor %}",
    "{{ messages | map(attribute='content') | join('<|im_start|>') }}",
]


def vocabulary(family: str) -> Tokenizer:
    kinds = dict.fromkeys(SPECIALS, CONTROL)
    if family == "byte":
        metadata = byte_level(*SPECIALS, "<tool>", types={**kinds, "<tool>": USER_DEFINED})
    else:
        pieces = [(text, 0.0) for text in [*SPECIALS[:-2], "<e>"]]
        metadata = sentence_piece(*pieces, types=kinds)
    return load_tokenizer(metadata)


TOKENIZERS = {family: vocabulary(family) for family in ("byte", "sentence")}


def control_tokens(tokenizer: Tokenizer, ids: list[int]) -> list[Any]:
    return [token for token in ids if tokenizer.vocabulary.is_type(token, *HIDDEN_TYPES)]


@pytest.mark.parametrize("family", TOKENIZERS)
@pytest.mark.parametrize("source", TEMPLATES)
def test_no_special_token_in_a_message_becomes_that_token(family: str, source: str) -> None:
    tokenizer = TOKENIZERS[family]
    specials = [tokenizer.token_text(i) for i in tokenizer.vocabulary.ids(*HIDDEN_TYPES)]
    template = ChatTemplate(source)

    def ids(text: str) -> list[int]:
        roles = ("system", "user", "assistant", "tool")
        messages = [{"role": role, "content": text} for role in roles]
        tools = [{"function": {"name": text, "description": text}}]
        prompt = template.render(messages, tools=tools, bos_token="", eos_token="")
        return encode_prompt(tokenizer, prompt)

    usual = control_tokens(tokenizer, ids("hi"))
    for text in [*specials, "".join(specials), *(f" x{text}\n" for text in specials)]:
        assert control_tokens(tokenizer, ids(text)) == usual


ENDS = st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<|", " ", "x", "<"]), max_size=4)


@given(ENDS, ENDS)
def test_texts_of_two_messages_do_not_form_a_token(first: list[str], second: list[str]) -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}end|><|im_end|>"
    template = ChatTemplate(source)
    messages = [{"role": "user", "content": "".join(text)} for text in (first, second)]
    prompt = template.render(messages, bos_token="", eos_token="")
    tokenizer = TOKENIZERS["byte"]
    ids = encode_prompt(tokenizer, prompt)
    assert control_tokens(tokenizer, ids) == [256 + SPECIALS.index("<|im_end|>")]
    assert tokenizer.decode(ids, special=True) == text_of(prompt)


@given(st.text(max_size=20), st.sampled_from(TEMPLATES[:4]), st.sampled_from(["byte", "sentence"]))
def test_without_special_tokens_the_tokens_are_those_of_the_whole_text(
    text: str, source: Any, family: Any
) -> None:
    tokenizer = TOKENIZERS[family]
    if any(special in text for special in SPECIALS):
        return
    messages = [{"role": "user", "content": text}]
    prompt = ChatTemplate(source).render(messages, bos_token="", eos_token="")
    whole = tokenizer.encode(text_of(prompt), add_special=False)
    bos = [tokenizer.bos] if tokenizer.adds_bos else []
    assert encode_prompt(tokenizer, prompt) == bos + whole


def test_user_defined_tokens_are_found_in_untrusted_text() -> None:
    tokenizer = TOKENIZERS["byte"]
    ids = encode_prompt(tokenizer, (("<tool>", False),))
    assert ids == tokenizer.encode("<tool>", parse_special=False)
    assert len(ids) == 1


def test_the_begin_token_occurs_once_and_no_end_token() -> None:
    tokenizer = load_tokenizer(sentence_piece(add_eos_token=True))
    assert encode_prompt(tokenizer, (("a", True),))[0] == 1
    assert encode_prompt(tokenizer, (("<s>a", True),)).count(1) == 1
    assert encode_prompt(tokenizer, (("<s>a", False),)).count(1) == 1
    assert 2 not in encode_prompt(tokenizer, (("a", True),))
