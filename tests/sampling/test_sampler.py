import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import sampling as reference

from tampu.errors import ComputeError, RequestError, ShapeError
from tampu.sampling import Sampler, SamplingOptions

QUARTERS = st.integers(-80, 80).map(lambda quarters: quarters / 4)
LOGITS = arrays.arrays(np.float32, st.integers(1, 80), elements=QUARTERS)


def sampler(size: int, **options: Any) -> Sampler:
    return Sampler(SamplingOptions(**{"seed": 1, **options}), size)


def distribution(
    logits: npt.NDArray[np.float32], count: int = 5_000, **options: Any
) -> npt.NDArray[np.float64]:
    one = sampler(len(logits), **options)
    return reference.frequencies([one.sample(logits) for _ in range(count)], len(logits))


def kept(
    logits: npt.NDArray[np.float32],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Any:
    """The distribution that the filters leave, by sorting."""
    order = reference.descending(logits)[: top_k or None]
    weights = np.zeros(len(logits), np.float32)
    weights[order] = reference.softmax(logits[order], temperature)
    result = np.where(weights >= min_p * weights.max(), weights, 0)
    if top_p < 1:
        inside = reference.nucleus(weights, top_p)
        result[np.setdiff1d(np.arange(len(logits)), inside)] = 0
    return result / result.sum(dtype=np.float64)


@pytest.mark.seed("S59")
@given(LOGITS)
def test_temperature_zero_takes_the_first_of_the_best_with_any_options(
    logits: npt.NDArray[Any],
) -> None:
    one = sampler(len(logits), temperature=0.0, top_k=5, top_p=0.3, min_p=0.2, typical_p=0.5)
    assert one.greedy
    assert one.sample(logits) == int(np.argmax(logits))


def test_greedy_takes_the_first_of_equal_logits() -> None:
    assert sampler(4, temperature=0).sample(np.array([1, 3, 3, 2], np.float32)) == 1


@pytest.mark.seed("S57")
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
        {"temperature": 0.5, "top_k": 0, "top_p": 1.0},
        {"temperature": 1.0, "top_k": 3, "top_p": 1.0},
        {"temperature": 1.0, "top_k": 0, "top_p": 0.7},
        {"temperature": 2.0, "top_k": 6, "top_p": 0.7},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.3},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.3},
        {"temperature": 1.5, "top_k": 0, "top_p": 0.9, "min_p": 0.3},
    ],
)
def test_tokens_are_sampled_with_the_probability_of_the_options(
    options: dict[str, Any],
) -> None:
    logits = np.array([0.2, 1.9, -1.0, 1.1, 0.0, 2.0, -3.0, 0.7, 1.0], np.float32)
    assert reference.close(distribution(logits, **options), kept(logits, **options), 5_000)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0}, {"temperature": 0.5, "top_k": 3}, {"top_p": 0.7, "top_k": 0},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.3}, {"top_n_sigma": 1.0},
        {"typical_p": 0.6, "top_k": 0}, {"logit_bias": {2: 4.0}, "top_k": 4},
        {"xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 0}, {"temperature": 0.0},
    ],
)  # fmt: skip
def test_the_probabilities_are_those_of_the_sampled_tokens(options: dict[str, Any]) -> None:
    logits = np.array([0.2, 1.9, -1.0, 1.1, 0.0, 2.0, -3.0, 0.7, 1.0], np.float32)
    tokens, probabilities = sampler(len(logits), **options).probabilities(logits, None)
    assert (np.diff(probabilities) <= 0).all()
    told = np.zeros(len(logits))
    told[tokens] = probabilities
    assert told.sum() == pytest.approx(1)
    assert reference.close(distribution(logits, **options), told, 5_000)


def test_the_probabilities_leave_out_what_a_mask_forbids_and_change_no_sample() -> None:
    logits = np.linspace(0, 3, 64, dtype=np.float32)
    mask = np.array([0b1010, 0], np.uint32)
    one, other = (sampler(64, seed=3, xtc_probability=0.5) for _ in range(2))
    for _ in range(8):
        tokens, _ = one.probabilities(logits, mask)
        assert {*tokens.tolist()} <= {1, 3}
        assert one.sample(logits, mask) == other.sample(logits, mask)


@given(LOGITS, st.integers(1, 90), st.floats(0.01, 0.99), st.floats(0.1, 2.0))
def test_top_k_and_top_p_equal_a_full_sort(
    logits: npt.NDArray[Any], k: int, p: float, temperature: float
) -> None:
    token = sampler(len(logits), top_k=k, top_p=p, temperature=temperature, seed=None).sample(
        logits
    )
    allowed = kept(logits, temperature, k, min(p + 1e-5, 1.0))
    assert allowed[token] > 0


@given(LOGITS, st.integers(0, 2**63 - 1))
def test_the_same_seed_gives_the_same_tokens(logits: npt.NDArray[Any], seed: int) -> None:
    for top_k in (0, 40):
        one, other = (sampler(len(logits), seed=seed, top_k=top_k) for _ in range(2))
        assert [one.sample(logits) for _ in range(8)] == [other.sample(logits) for _ in range(8)]


@pytest.mark.parametrize("seed", [None, -1])
def test_without_a_seed_samples_differ(seed: int | None) -> None:
    logits = np.zeros(1000, np.float32)
    one, other = (sampler(1000, seed=seed, top_k=0) for _ in range(2))
    assert [one.sample(logits) for _ in range(10)] != [other.sample(logits) for _ in range(10)]


def test_other_seeds_give_other_tokens() -> None:
    logits = np.zeros(1000, np.float32)
    one, other = (sampler(1000, seed=seed, top_k=0) for seed in (0, 1))
    assert [one.sample(logits) for _ in range(10)] != [other.sample(logits) for _ in range(10)]


def test_seeded_samples_are_the_same_in_every_release() -> None:
    logits = np.linspace(0, 3, 500, dtype=np.float32)
    tokens = [sampler(500, seed=42, top_k=top_k).sample(logits) for top_k in (40, 0)]
    assert tokens == [473, 466]


@pytest.mark.parametrize("top_k", [0, 2, 40])
@pytest.mark.parametrize("size", [5, 6000])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nonfinite_logits_are_an_error(top_k: int, size: int, temperature: float) -> None:
    one = sampler(size, top_k=top_k, temperature=temperature)
    zeros = np.zeros(size, np.float32)
    for bad in (np.nan, np.inf):
        logits = zeros.copy()
        logits[size // 2] = bad
        with pytest.raises(ComputeError, match="unusable"):
            one.sample(logits)
    with pytest.raises(ComputeError, match="forbidden"):
        one.sample(np.full(size, -np.inf, np.float32))


@pytest.mark.parametrize("top_k", [0, 3, 40])
@pytest.mark.parametrize("typical_p", [1.0, 0.9])
def test_masked_tokens_are_never_sampled(top_k: int, typical_p: float) -> None:
    logits = np.full(6000, -np.inf, np.float32)
    logits[[7, 5000]] = 1.0
    one = sampler(6000, top_k=top_k, typical_p=typical_p, top_p=1.0)
    assert {one.sample(logits) for _ in range(50)} == {7, 5000}


@pytest.mark.parametrize("top_k", [0, 5])
def test_typical_p_can_leave_out_the_best(top_k: int) -> None:
    logits = np.log(np.array([0.6, 0.2, 0.1, 0.05, 0.05], np.float32))
    one = sampler(5, top_k=top_k, temperature=1.0, top_p=1.0, typical_p=0.1)
    assert {one.sample(logits) for _ in range(20)} == {1}


@pytest.mark.parametrize(
    ("logits", "needs"),
    [
        (np.zeros(4, np.float32), "shape"),
        (np.zeros((1, 5), np.float32), "shape"),
        (np.zeros(5, np.float64), "float32"),
    ],
)
def test_logits_of_another_shape_or_type_are_refused(
    logits: npt.NDArray[np.float32] | npt.NDArray[np.float64], needs: str
) -> None:
    with pytest.raises(ShapeError, match=needs):
        sampler(5).sample(cast("npt.NDArray[np.float32]", logits))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_callers_logits_are_not_changed(temperature: float) -> None:
    logits = np.linspace(0, 1, 50, dtype=np.float32)
    logits.flags.writeable = False
    for top_k in (0, 5):
        one = sampler(
            50, temperature=temperature, top_k=top_k, repeat_penalty=1.5, logit_bias={3: 1.0}
        )
        one.prime([49, 48])
        one.sample(logits)


def test_a_repeat_penalty_works_at_temperature_zero() -> None:
    one = sampler(3, temperature=0, repeat_penalty=2.0)
    logits = np.array([1.0, 1.9, 1.8], np.float32)
    assert [one.sample(logits) for _ in range(3)] == [1, 2, 0]


def test_the_prompt_counts_for_the_penalties() -> None:
    one = sampler(3, temperature=0, presence_penalty=1.0)
    one.prime([1])
    assert one.sample(np.array([1.0, 1.9, 0.0], np.float32)) == 0


def test_penalties_look_at_the_last_tokens_only() -> None:
    one = sampler(4, temperature=0, presence_penalty=5.0, repeat_last_n=2)
    one.prime([0, 0, 0, 1])
    logits = np.array([3, 2, 1, 0], np.float32)
    assert [one.sample(logits) for _ in range(4)] == [2, 0, 1, 2]


def test_penalties_over_the_whole_context_forget_nothing() -> None:
    one = sampler(3, temperature=0, frequency_penalty=0.01, repeat_last_n=-1)
    one.prime([0] * 150)
    logits = np.array([1.0, 0.0, -9.0], np.float32)
    assert [one.sample(logits) for _ in range(2)] == [1, 1]


def test_no_window_means_no_penalties() -> None:
    one = sampler(3, temperature=0, presence_penalty=9.0, repeat_last_n=0)
    one.prime([1])
    assert one.sample(np.array([0, 1, 0], np.float32)) == 1


def test_the_frequency_penalty_grows_with_each_time() -> None:
    one = sampler(2, temperature=0, frequency_penalty=1.0)
    assert [one.sample(np.array([2.5, 0.0], np.float32)) for _ in range(5)] == [0, 0, 0, 1, 0]


def test_a_bias_changes_logits_and_forbids_tokens() -> None:
    logits = np.array([0, 1, 2], np.float32)
    assert sampler(3, temperature=0, logit_bias={0: 3.0}).sample(logits) == 0
    assert sampler(3, temperature=0, logit_bias={2: -np.inf}).sample(logits) == 1


def test_a_bias_for_an_unknown_token_is_refused() -> None:
    with pytest.raises(RequestError, match="logit_bias names token 3; the vocabulary ends at 2"):
        sampler(3, logit_bias={3: 1.0})


def test_a_prompt_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestError, match="token 3 of the prompt"):
        sampler(3, repeat_penalty=1.1).prime([0, 3])


def test_temperature_is_applied_before_top_p() -> None:
    # 0.5, 0.3, 0.2: at temperature 1 the nucleus 0.75 has two tokens, at 0.3 only one.
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    for top_k in (0, 3):
        hot = sampler(3, temperature=1.0, top_p=0.75, top_k=top_k)
        cold = sampler(3, temperature=0.3, top_p=0.75, top_k=top_k)
        assert {hot.sample(logits) for _ in range(100)} == {0, 1}
        assert {cold.sample(logits) for _ in range(100)} == {0}


@pytest.mark.parametrize("min_p", [5e-324, 1e-9, 0.5, 0.999, 1.0])
def test_min_p_alone_equals_a_full_sort(min_p: float) -> None:
    logits = np.random.default_rng(2).normal(0, 0.5, 300).astype(np.float32)
    one = sampler(300, top_k=0, top_p=1.0, min_p=min_p)
    allowed = kept(logits, 0.8, min_p=min_p)
    assert all(allowed[one.sample(logits)] > 0 for _ in range(200))


def test_top_p_is_applied_after_top_k() -> None:
    # 0.4, 0.3, 0.3: of all, 0.4 is less than half; of the best two it is more.
    logits = np.log(np.array([0.4, 0.3, 0.3], np.float32))
    one = sampler(3, temperature=1.0, top_k=2, top_p=0.5)
    assert {one.sample(logits) for _ in range(100)} == {0}


@pytest.mark.seed("S58")
@pytest.mark.parametrize("top_k", [40, 0])
def test_sampling_from_a_large_vocabulary_is_much_faster_than_sorting_it(top_k: int) -> None:
    logits = np.random.default_rng(0).normal(0, 3, 128_256).astype(np.float32)
    one = sampler(len(logits), top_k=top_k)
    assert 3 * fastest(lambda: one.sample(logits)) < fastest(lambda: np.argsort(-logits))


def fastest(call: Callable[[], Any] | Callable[[], npt.NDArray[Any]]) -> int:
    """The least time of a few calls: what the code costs on a machine that does other things."""
    times = []
    for _ in range(20):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return min(times)


def slowly(
    logits: npt.NDArray[np.float32],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    **options: Any,
) -> Any:
    """The distribution that top-n-sigma and XTC leave as well, by sorting."""
    n, chance = options.get("top_n_sigma", 0), options.get("xtc_probability", 0)
    if n > 0:
        bound = logits.max() - n * logits.std()
        logits = np.where(logits >= bound, logits, -np.inf).astype(np.float32)
    before = kept(logits, temperature, top_k, top_p, min_p)
    above = np.flatnonzero(before >= options.get("xtc_threshold", 0.1))
    after = before.copy()
    after[above[np.argsort(-before[above], kind="stable")][:-1]] = 0
    return (1 - chance) * before + chance * after / after.sum()


@pytest.mark.parametrize("top_k", [0, 6])
@pytest.mark.parametrize(
    "options",
    [
        {"top_n_sigma": 1.0},
        {"top_n_sigma": 1.5, "top_p": 0.8, "temperature": 3.0},
        {"xtc_probability": 1.0},
        {"xtc_probability": 0.5, "xtc_threshold": 0.2, "top_p": 0.9},
        {"xtc_probability": 0.5, "min_p": 0.1},
        {"xtc_probability": 0.5, "top_n_sigma": 1.2, "min_p": 0.1, "top_p": 0.95},
        {"xtc_probability": 1.0, "xtc_threshold": 0.51},
    ],
)
def test_top_n_sigma_and_xtc_with_and_without_top_k(options: dict[str, Any], top_k: int) -> None:
    logits = np.array([0.2, 1.9, -1.0, 1.1, 0.0, 2.0, -3.0, 0.7, 1.0], np.float32)
    options = {"temperature": 1.0, "top_p": 1.0, **options, "top_k": top_k}
    assert reference.close(distribution(logits, **options), slowly(logits, **options), 5_000)


@pytest.mark.parametrize("options", [{"top_n_sigma": 0.5}, {"xtc_probability": 1.0}])
@pytest.mark.parametrize("count", [3, 400])
def test_top_n_sigma_and_xtc_see_only_tokens_that_the_grammar_allows(
    options: dict[str, float], count: int
) -> None:
    logits = np.linspace(4, 0, 16_000, dtype=np.float32)
    mask = np.zeros(-(-16_000 // 32), np.uint32)
    allowed = np.arange(32, 32 * count + 32, 32)
    mask[allowed // 32] = 1
    masked = np.full(16_000, -np.inf, np.float32)
    masked[allowed] = logits[allowed]
    one, two = (sampler(16_000, top_k=0, top_p=1.0, **options) for _ in range(2))
    found = [(one.sample(logits, mask), two.sample(masked)) for _ in range(200)]
    assert all(a == b for a, b in found)


def test_top_n_sigma_and_xtc_do_not_change_seeded_samples_while_off() -> None:
    logits = np.random.default_rng(3).normal(0, 2, 500).astype(np.float32)
    one, two = sampler(500), sampler(500, xtc_threshold=0.6, xtc_probability=0.5, dry_base=2.0)
    assert [one.sample(logits) for _ in range(50)] == [two.sample(logits) for _ in range(50)]


# From the best alone


@pytest.mark.parametrize(
    ("options", "count"),
    [({"temperature": 0.0}, 1), ({"top_k": 1}, 1), ({"top_p": 0.0}, 1), ({"top_k": 40}, 40),
     ({"top_k": 500}, 0), ({"top_k": 0}, 0), ({"top_k": -1}, 0),
     ({"top_k": 40, "repeat_penalty": 1.1}, 0), ({"temperature": 0.0, "logit_bias": {3: 1.0}}, 0),
     ({"top_k": 40, "dry_multiplier": 0.8}, 0), ({"top_k": 40, "top_n_sigma": 1.0}, 0)],
)  # fmt: skip
def test_how_many_of_the_best_are_enough(options: dict[str, Any], count: int) -> None:
    assert sampler(500, **options).candidates == count


@given(
    arrays.arrays(np.float32, st.integers(30, 80), elements=QUARTERS),
    st.sampled_from([
        {"temperature": 0.0}, {"top_k": 5}, {"top_k": 20, "top_p": 0.7, "min_p": 0.05},
        {"top_k": 9, "temperature": 1.7, "typical_p": 0.6},
        {"top_k": 9, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    ]),
    st.integers(0, 9),
)  # fmt: skip
def test_the_best_give_the_tokens_that_all_logits_give(
    logits: npt.NDArray[np.float32], options: dict[str, Any], more: int
) -> None:
    one, two = (sampler(len(logits), **options) for _ in range(2))
    # Equal logits at the border: of them the first, as `sample` takes them.
    best = np.argsort(-logits, kind="stable")[: one.candidates + more]
    best = np.random.default_rng(0).permutation(best)
    for _ in range(8):
        assert one.choose(best, logits[best], float(logits.sum())) == two.sample(logits)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 2}])
@pytest.mark.parametrize(
    ("logits", "total"),
    [([1.0, 2.0], np.nan), ([1.0, 2.0], np.inf), ([-np.inf, -np.inf], -np.inf),
     ([1.0, np.nan], 3.0), ([1.0, np.inf], 3.0)],
)  # fmt: skip
def test_the_best_of_an_unusable_row_are_an_error(
    options: dict[str, Any], logits: list[float], total: float
) -> None:
    with pytest.raises(ComputeError, match="the largest logit is"):
        sampler(80, **options).choose(np.arange(2), np.array(logits, np.float32), total)


def test_forbidden_tokens_among_the_best_are_never_chosen() -> None:
    one = sampler(80, top_k=3, temperature=9.0)
    logits = np.array([-np.inf, 1.0, -np.inf], np.float32)
    assert {one.choose(np.array([4, 9, 2]), logits, -np.inf) for _ in range(50)} == {9}


def test_numpys_random_numbers_are_imported_before_threads_need_them() -> None:
    """At the first use by two threads at once, numpy's own import ends in RecursionError."""
    code = "import tampu.sampling.sampler, sys; sys.exit('numpy.random' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
