"""Encoders of texts: their hidden states and embeddings equal those of transformers.

A new one needs a recipe in `support.checkpoints.encoders`, and no line here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.checkpoints import ENCODERS
from support.laboratory import Laboratory, Logits, exact, in_depth, relative_error, tokens
from support.llama_cpp import embeddings
from support.mimicry import Mimicry
from transformers import PreTrainedModel

from tampu.engine.engine import Engine
from tampu.ml.vectors import unit_vectors

pytestmark = pytest.mark.parity

EACH = pytest.mark.parametrize("name", ENCODERS)
# With windows, with experts, with ALiBi; in F32 all are compared.
TYPICAL = {"modern_bert", "nomic_bert_moe", "jina_v2"}

TEXTS = [tokens(length, seed) for seed, length in enumerate([1, 2, 17, 100, 120])]
SHORT = 24
QUANTIZED = 5e-2  # what quantized activations change at most


def states(model: PreTrainedModel, text: list[int]) -> Logits:
    """Return transformers' final hidden states (tokens, features) of a text."""
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([text])).last_hidden_state[0]
    found: Logits = hidden.float().numpy()
    return found


def projected(folder: Path, rows: Logits) -> Logits:
    """Return rows (n, features) after the dense layers of a checkpoint, in their order."""
    for part in sorted(folder.glob("*_Dense")):
        rows = rows @ load_file(part / "model.safetensors")["linear.weight"].T
    return rows


def engine(laboratory: Laboratory, name: str, type_: str = "F32", **options: str) -> Engine:
    """Return the engine with a context in which all texts fit one batch."""
    return Engine.load(
        laboratory.file(name, type_),
        context=256,
        slots=len(TEXTS),
        threads=1,
        pooling=options.get("pooling"),
        cache_type=options.get("cache_type", "f32"),
    )


@EACH
def test_states_of_texts_together_and_alone(laboratory: Laboratory, name: str) -> None:
    model = laboratory.reference(name)
    reference = [projected(laboratory.checkpoint(name), states(model, text)) for text in TEXTS]
    with engine(laboratory, name, pooling="none") as ours:
        together = ours.embed(TEXTS, normalize=False)
        alone = [ours.embed([text], normalize=False) for text in TEXTS]
    whole = np.concatenate(reference)
    laboratory.compare(name, together, whole, "F32, embeddings", exact(name))
    laboratory.compare(name, np.concatenate(alone), whole, "F32, embeddings", exact(name))


@EACH
def test_embeddings_are_those_of_sentence_transformers(laboratory: Laboratory, name: str) -> None:
    """The mean of the states, the dense layers if there are any, and a length of 1."""
    folder, model = laboratory.checkpoint(name), laboratory.reference(name)
    means = np.stack([states(model, text).mean(0) for text in TEXTS])
    with engine(laboratory, name, pooling="mean") as ours:
        found = ours.embed(TEXTS)
    assert relative_error(found, unit_vectors(projected(folder, means))) < exact(name)


@pytest.mark.slow
@EACH
def test_a_wrong_weight_would_be_noticed(laboratory: Laboratory, name: str) -> None:
    """Each weight that is zero moves transformers' states by much more than we allow."""
    model = laboratory.reference(name)
    text = tokens(SHORT)
    expected = states(model, text)
    unnoticed = []
    for weight, parameter in model.named_parameters():
        held = parameter.detach().clone()
        with torch.no_grad():
            parameter.zero_()
            changed = states(model, text)
            parameter.copy_(held)
        if not relative_error(changed, expected) > 5 * exact(name):
            unnoticed.append(weight)
    # What is added to all keys changes no softmax, and nothing here reads a pooler.
    never = (
        "key.bias",
        "k_lin.bias",
        "layer_norm_k.bias",
        "pooler.dense.weight",
        "pooler.dense.bias",
    )
    assert not [each for each in unnoticed if not each.endswith(never)]


@pytest.mark.parametrize("name", in_depth(ENCODERS, TYPICAL))
def test_quantized_weights_match_their_dequantized_values(
    laboratory: Laboratory, name: str
) -> None:
    """No further from the exact answer than transformers with rounding is."""
    model = laboratory.quantized_reference(name, "Q8_0")
    folder, text = laboratory.checkpoint(name), TEXTS[-1]
    rounded_folder = laboratory.quantized_checkpoint(name, "Q8_0")
    reference = projected(rounded_folder, states(model, text))
    with Mimicry(rounds=True):
        rounded = projected(rounded_folder, states(model, text))
    with engine(laboratory, name, "Q8_0", pooling="none", cache_type="f16") as quantized:
        ours = quantized.embed([text], normalize=False)
    limit = min(1.3 * relative_error(rounded, reference), QUANTIZED)
    laboratory.compare(name, ours, reference, "Q8_0, cache F16", limit)
    exact_states = projected(folder, states(laboratory.reference(name), text))
    assert np.abs(reference - exact_states).max() > 1e-2  # the weights were rounded


@pytest.mark.slow
@EACH
def test_llama_cpp_gives_the_same_embeddings(laboratory: Laboratory, name: str) -> None:
    """It takes some activations from a table in half precision."""
    with engine(laboratory, name) as model:
        ours = model.embed(TEXTS)
    theirs = embeddings(laboratory.file(name), TEXTS)
    is_equal = relative_error(np.array(theirs), ours) < 5e-3
    assert is_equal is not ENCODERS[name].differs_in_llama_cpp
