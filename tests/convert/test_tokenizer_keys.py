"""What a tokenizer.json may say: it is carried, irrelevant, or it stops the conversion by name."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import handmade_checkpoints as handmade

from tampu.convert import plan_conversion
from tampu.convert.checkpoint import Checkpoint
from tampu.convert.keys.tokenizer_json import ADDED, COMPONENTS, TOP, Key, Refusals
from tampu.convert.vocabulary import tokenizer_metadata
from tampu.errors import ModelFileError, UnsupportedModelError

Tree = dict[str, Any]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def changed(path: str, value: Any) -> Tree:
    """Return a tokenizer.json with another value at a path of keys and numbers."""
    tree = copy.deepcopy(handmade.TOKENIZER)
    *parents, last = path.split("/")
    node: Any = tree
    for name in parents:
        node = node[int(name) if name.isdigit() else name]
    node[last] = value
    return tree


def keys(folder: Path, tree: Tree, refusals: Refusals | None = None, **files: Any) -> Tree:
    checkpoint = Checkpoint.open(handmade.write(folder, tokenizer=tree, **files))
    return dict(tokenizer_metadata(checkpoint, handmade.ROWS, refusals))


def special(name: str) -> Tree:
    return {"SpecialToken": {"id": name, "type_id": 0}}


TEXT: Tree = {"Sequence": {"id": "A", "type_id": 0}}
IDS = {"<|begin|>": 8, "<|end|>": 9}


def template(*single: Tree) -> Tree:
    tokens = {name: {"id": name, "ids": [IDS[name]], "tokens": [name]} for name in IDS}
    pair = [TEXT, {"Sequence": {"id": "B", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": [*single],
        "pair": pair,
        "special_tokens": tokens,
    }


REFUSED: Mapping[str, tuple[str, Any, str]] = {
    "an unknown key": ("novelty", 1, "unknown key 'novelty'"),
    "an unknown key of the model": ("model/novelty", 1, "model: unknown key 'novelty'"),
    "an unknown key of an added token": ("added_tokens/0/novelty", 1, "'<|begin|>': unknown key"),
    "a normalizer": ("normalizer", {"type": "Novel"}, "normalizer: Novel is not supported"),
    "a decoder": ("decoder", {"type": "CTC"}, "decoder: CTC is not supported"),
    "a decoder that changes texts": (
        "decoder",
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b"},
        "decoder: Replace: pattern",
    ),
    "a post-processor": ("post_processor", {"type": "Novel"}, "post_processor: Novel"),
    "a key of a sequence": ("pre_tokenizer/novelty", 1, "unknown key 'novelty' of Sequence"),
    "a key of a step": (
        "pre_tokenizer/pretokenizers/1/novelty",
        1,
        "pre_tokenizer: ByteLevel: unknown key 'novelty'",
    ),
    "an inverted split": ("pre_tokenizer/pretokenizers/0/invert", True, "invert 'True'"),
    "a split that removes": (
        "pre_tokenizer/pretokenizers/0/behavior",
        "Removed",
        "unknown pre-tokenizer",
    ),
    "a space before each word": (
        "pre_tokenizer/pretokenizers/1/add_prefix_space",
        True,
        "a space in front of each word",
    ),
    "ends of words": ("model/end_of_word_suffix", "</w>", "end_of_word_suffix '</w>'"),
    "continuations": ("model/continuing_subword_prefix", "##", "continuing_subword_prefix '##'"),
    "two tokens in front": (
        "post_processor",
        template(special("<|begin|>"), special("<|end|>"), TEXT),
        "2 tokens in front of a text",
    ),
    "two tokens after": (
        "post_processor",
        template(TEXT, special("<|begin|>"), special("<|end|>")),
        "2 tokens after a text",
    ),
    "two templates": (
        "post_processor",
        {
            "type": "Sequence",
            "processors": [template(special("<|begin|>"), TEXT), template(TEXT)],
        },
        "2 steps that add tokens",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_stops_the_conversion_and_may_be_allowed(
    tmp_path: Path, case: str
) -> None:
    path, value, message = REFUSED[case]
    tree = changed(path, value)
    with pytest.raises(UnsupportedModelError, match=re.escape(message)) as raised:
        keys(tmp_path, tree)
    if "unknown pre-tokenizer" in message:  # there is nothing to convert without it
        return
    assert "--allow-unknown" in str(raised.value)
    refusals = Refusals(allowed=True)
    assert keys(tmp_path, tree, refusals)["tokenizer.ggml.model"] == "gpt2"
    assert any(message in each for each in refusals.messages)


IRRELEVANT: Mapping[str, Any] = {
    "version": "2.0",
    "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": "BatchLongest"},
    "model/dropout": 0.1,
    "model/fuse_unk": True,
    "decoder/trim_offsets": False,
}


@pytest.mark.parametrize("path", IRRELEVANT)
def test_what_is_irrelevant_changes_nothing(tmp_path: Path, path: str) -> None:
    plain = keys(tmp_path / "plain", handmade.TOKENIZER)
    assert keys(tmp_path / "other", changed(path, IRRELEVANT[path])) == plain


def test_every_key_of_the_table_is_used_or_has_a_reason_or_values() -> None:
    tables = [TOP, ADDED, *(keys for kinds in COMPONENTS.values() for keys in kinds.values())]
    for table in tables:
        for key in table.values():
            assert isinstance(key, Key)
            assert not (key.why and key.only)


def test_the_end_token_of_the_post_processor_comes_first(tmp_path: Path) -> None:
    sequence = {"type": "Sequence", "processors": [BYTE_LEVEL, template(TEXT, special("<|end|>"))]}
    tree = changed("post_processor", sequence)
    found = keys(tmp_path, tree, generation_config={"eos_token_id": [7, 9]})
    assert found["tokenizer.ggml.add_eos_token"] is True
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.ggml.eos_token_id"] == 9
    assert found["tokenizer.ggml.eos_token_ids"] == [9, 7]


@pytest.mark.parametrize("kind", ["BertProcessing", "RobertaProcessing"])
def test_the_post_processors_of_berts_are_read(tmp_path: Path, kind: str) -> None:
    node: Tree = {"type": kind, "cls": ["<|begin|>", 8], "sep": ["<|end|>", 9]}
    if kind == "RobertaProcessing":
        node |= {"trim_offsets": True, "add_prefix_space": True}
    found = keys(tmp_path, changed("post_processor", node))
    assert (found["tokenizer.ggml.bos_token_id"], found["tokenizer.ggml.eos_token_id"]) == (8, 9)
    assert found["tokenizer.ggml.add_eos_token"] is True


def test_a_damaged_post_processor_is_an_error(tmp_path: Path) -> None:
    for node in (
        {"type": "TemplateProcessing", "single": [5]},
        {"type": "TemplateProcessing", "single": []},
        {"type": "TemplateProcessing", "single": [TEXT, special("<|no|>")]},
        {"type": "BertProcessing", "cls": 5, "sep": ["x", 9]},
    ):
        with pytest.raises(ModelFileError, match="post_processor"):
            keys(tmp_path, changed("post_processor", node))


def test_the_settings_flags_of_an_added_token_win(tmp_path: Path) -> None:
    decoder = {"10": {"content": "<tool>", "lstrip": True, "normalized": False, "special": False}}
    found = keys(tmp_path, handmade.TOKENIZER, tokenizer_config={"added_tokens_decoder": decoder})
    flags = {token["id"]: token for token in json.loads(found["tokenizer.tampu.added_tokens"])}
    assert flags[10] == {"id": 10, "lstrip": True, "is_new": True}


def test_two_texts_for_one_added_token_are_an_error(tmp_path: Path) -> None:
    decoder = {"10": {"content": "<other>"}}
    with pytest.raises(ModelFileError, match="token 10 is '<other>', and '<tool>' in another file"):
        keys(tmp_path, handmade.TOKENIZER, tokenizer_config={"added_tokens_decoder": decoder})


def test_an_unknown_key_stops_the_whole_conversion(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path, tokenizer=changed("model/novelty", 1))
    with pytest.raises(UnsupportedModelError, match="unknown key 'novelty'"):
        plan_conversion(folder)
    assert plan_conversion(folder, allow_unknown=True)
