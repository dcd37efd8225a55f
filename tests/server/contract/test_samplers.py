"""llama-server's `samplers`: those that a request names are used, `infill` among them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.tiny_model import EOS, letter_token

pytestmark = [pytest.mark.client, pytest.mark.server]

BODY: dict[str, Any] = {"model": "filler", "prompt": "x", "temperature": 0}


@pytest.mark.parametrize(
    ("samplers", "changed"),
    [
        (["top_k", "top_p", "infill"], "temperature min_p repeat_penalty dry_multiplier"),
        ([], "temperature min_p repeat_penalty dry_multiplier top_k top_p"),
        ("edkypmxt", ""),
        ("edskypmxt", ""),
        ("temperature", "min_p repeat_penalty dry_multiplier top_k top_p"),
        (["penalties", "dry", "temperature", "top_k", "top_p", "min_p"], ""),
        ("penalties;dry;min_p", "temperature top_k top_p"),
    ],
    ids=str,
)
def test_samplers_that_are_not_named_are_not_used(
    client: httpx.Client, samplers: Any, changed: str
) -> None:
    given: dict[str, Any] = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "repeat_penalty": 1.25,
        "dry_multiplier": 2.0,
    }  # fmt: skip
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0,
           "dry_multiplier": 0.0}  # fmt: skip
    body = {**BODY, **given, "samplers": samplers, "n_predict": 1}
    found = client.post("/completion", json=body).json()["generation_settings"]
    wanted = given | {name: off[name] for name in changed.split()}
    assert {name: found[name] for name in given} == wanted


@pytest.mark.parametrize(
    "samplers",
    [
        ["infill", "top_k"], ["top_k", "infill", "min_p"], "ik", ["infill", "infill"],
        ["top_p", "top_k"], ["top_k", "top_k"], ["temperature", "dry"], ["adaptive_p"], "kz", 5,
        [5], {"top_k": 1}, ["temperature", "temperature"],
    ],
    ids=str,
)  # fmt: skip
def test_samplers_in_another_order_are_refused(client: httpx.Client, samplers: Any) -> None:
    response = client.post("/completion", json={**BODY, "samplers": samplers})
    assert response.status_code == 400
    assert "samplers" in response.json()["error"]["message"]


# Letters without others that begin with them, and t with some that do
APART = {letter_token(letter): 30.0 for letter in "bfgjkpquvw"}
TOGETHER = {letter_token(text): 30.0 for text in ("th", "ti", "te", "to")}


@pytest.mark.parametrize(
    ("bias", "wanted"),
    [
        ({EOS: 16.5}, ""),  # 0.17
        (APART, ""),  # 0.1 each
        ({letter_token("t"): 30.5, **TOGETHER}, "tttt"),
        ({}, "Hello, world."),
    ],
    ids=["a likely end", "nothing likely", "a common beginning", "one token"],
)
@pytest.mark.parametrize("path", ["/completion", "/infill", "/v1/completions"])
def test_infill_ends_rather_than_says_what_is_unlikely(
    client: httpx.Client, path: str, bias: dict[int, float], wanted: str
) -> None:
    body = BODY | {
        "top_k": 40, "top_p": 0.9999, "seed": 1, "max_tokens": 4,
        "logit_bias": [[token, value] for token, value in bias.items()],
    }  # fmt: skip

    def said(samplers: Any) -> Any:
        response = client.post(path, json={**body, "samplers": samplers})
        assert response.status_code == 200, response.text
        found = response.json()
        return found["choices"][0]["text"] if "choices" in found else found["content"]

    for samplers in (["top_k", "top_p", "infill"], "top_k;top_p;infill", "infill", "kpi"):
        assert said(samplers) == wanted
    assert (said(["top_k", "top_p"]) == wanted) is (not bias)


def test_probabilities_after_sampling_are_those_that_infill_leaves(client: httpx.Client) -> None:
    body = BODY | {
        "top_k": 40, "seed": 1, "n_predict": 1, "n_probs": 5, "post_sampling_probs": True,
        "logit_bias": [[letter_token("t"), 30.5], *([token, 30.0] for token in TOGETHER)],
    }  # fmt: skip
    for samplers, count in ((["top_k"], 5), (["top_k", "infill"], 1)):
        answer = client.post("/completion", json=body | {"samplers": samplers}).json()
        [entry] = answer["completion_probabilities"]
        likely = [one["id"] for one in entry["top_probs"] if one["prob"] > 1e-6]
        assert likely[0] == letter_token("t")
        assert len(likely) == count


def test_a_grammar_holds_with_infill(client: httpx.Client) -> None:
    body = BODY | {
        "samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.99, "seed": 1,
        "grammar": 'root ::= [a-z] [a-z] "."', "logit_bias": [[token, 30.0] for token in APART],
    }  # fmt: skip
    answer = client.post("/completion", json=body).json()
    assert len(answer["content"]) == 3
    assert answer["content"].endswith(".")
