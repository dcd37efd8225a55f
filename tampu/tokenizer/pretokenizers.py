"""Pre-tokenizers: how byte-level BPE splits a text into words, by `tokenizer.ggml.pre`.

One table: the name in the file, and the stages of splitting. A stage is a regular
expression whose matches become words of their own, as do the stretches between them. The
expressions are those of the families' own tokenizers (data, in the syntax of the Oniguruma library
that `tokenizers` uses), the names and flags those of llama.cpp's converter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tampu.errors import UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

_DIGITS = r"\p{N}"
_THREE_DIGITS = r"\p{N}{1,3}"
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|"
_LLAMA3 = f"{_CONTRACTION}|{_WORDS}{_THREE_DIGITS}|{_SIGNS}{_LINES}"
_QWEN2 = f"{_CONTRACTION}|{_WORDS}{_DIGITS}|{_SIGNS}{_LINES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{_DIGITS}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)

# A word may change from capitals to small letters, but not back.
_CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PATH_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|"


def _cased(ending: str, digits: str) -> str:
    first = rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{ending}"
    second = rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{ending}"
    return f"{first}|{second}|{digits}|{_PATH_SIGNS}{_LINES}"


_TEKKEN = _cased("", _DIGITS)
_GPT4O = _cased(f"{_CONTRACTION}?", _THREE_DIGITS)

_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _LINES
)
# The cased letters that the family lists one by one; it leaves some out (small Armenian ones).
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _DIGITS)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_SPACES_BY_POWERS = "|".join(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1))
_JAIS2 = (
    rf"{_CONTRACTION}|{_WORDS}{_THREE_DIGITS}|{_SIGNS}\s*[\r\n]+"
    rf"|{_SPACES_BY_POWERS}|\s{{1,2}}(?!\S)|\s{{1}}"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES
)
_SEED = rf"{_CONTRACTION}|{_WORDS}\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
# Numbers in threes from the right, in a time that grows with their length and not its square.
_RIGHT_DIGITS = (r"\p{N}+", r"^\p{N}{1,2}(?=(?:\p{N}{3})+$)", _THREE_DIGITS)
# Letters of scripts without spaces between words.
_NO_SPACES = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
# As `_GPT4O`, but for Chinese characters, which are words of their own.
_OF_KIMI = tuple(rf"(?:(?!\p{{Han}}){letters})" for letters in (_CAPITALS, _SMALL))
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_OF_KIMI[0]}*{_OF_KIMI[1]}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_OF_KIMI[0]}+{_OF_KIMI[1]}*{_CONTRACTION}?"
    rf"|{_THREE_DIGITS}|{_SIGNS}{_LINES}"
)
_MINICPM5 = (_THREE_DIGITS, rf"{_CONTRACTION}|{_WORDS}\p{{N}}+|{_SIGNS}{_LINES}")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to split texts into words, with related settings.

    `whole_words`: a word that is a token is not merged, whatever the merges say (Hugging Face's
    `ignore_merges`), unless the file says otherwise. `adds_bos`: the default if the file has none.
    `joins_words`: one word may have spaces between its letters. `is_nfc`: the default if the file
    has no normalizer: the tokenizers that llama.cpp's converter calls so bring texts to NFC, and
    its files do not say it.
    """

    stages: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    joins_words: bool = False
    is_nfc: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the library's object; it gives words in GPT-2's alphabet of bytes."""
        from tokenizers import Regex, pre_tokenizers  # slow to import; only for other than ASCII

        splits = [pre_tokenizers.Split(Regex(stage), "isolated") for stage in self.stages]
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, alphabet])


_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer(_DEFAULT)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("jais-2", PreTokenizer((_JAIS2,))),
    ("minicpm5", PreTokenizer(_MINICPM5, whole_words=True)),
    ("qwen2", PreTokenizer((_QWEN2,), is_nfc=True)),
    (
        "deepseek-r1-qwen stablelm2 hunyuan megrez solar-open grok-2 kormo f2llmv2",
        PreTokenizer((_QWEN2,)),
    ),
    ("qwen35", PreTokenizer((_QWEN35,), is_nfc=True)),
    ("ufakzeka", PreTokenizer((_QWEN2.removeprefix(f"{_CONTRACTION}|"),))),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2))),
    ("tekken", PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe "
        "gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling",
        PreTokenizer((_GPT2,)),
    ),
    ("modern-bert mpt olmo", PreTokenizer((_GPT2,), is_nfc=True)),
    ("command-r", PreTokenizer((_DIGITS, _GPT2), is_nfc=True)),
    ("none", PreTokenizer(())),
    (
        "refact starcoder smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer((_DIGITS, _GPT2)),
    ),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER)),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer((_THREE_DIGITS, _CJK, _DEEPSEEK3))),
    ("afmoe", PreTokenizer((*_RIGHT_DIGITS, _NO_SPACES, _DEEPSEEK3))),
    ("falcon", PreTokenizer(_FALCON)),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, _DIGITS))),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    ("seed-coder", PreTokenizer((_SEED,))),
    ("kimi-k2", PreTokenizer((_KIMI,))),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,), joins_words=True)),
)

_BY_NAME = {name: family for names, family in _FAMILIES for name in names.split()}


def name_of(stages: tuple[str, ...], *, whole_words: bool | None = None) -> str | None:
    """Return a name of the pre-tokenizer with these stages, None if there is none.

    Args:
        stages: the regular expressions.
        whole_words: whether words that are tokens are not merged; None: either.
    """
    for names, each in _FAMILIES:
        if each.stages == stages and whole_words in (None, each.whole_words):
            return names.split()[0]
    return None


def known_names() -> list[str]:
    """Return every name that `find` knows, in alphabetical order."""
    return sorted(_BY_NAME)


def find(name: str) -> PreTokenizer:
    """Return the pre-tokenizer of a `tokenizer.ggml.pre`.

    Raises:
        UnsupportedModelError: naming it and those that are known.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise UnsupportedModelError(
        f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; "
        f"known: {', '.join(known_names())}"
    )
