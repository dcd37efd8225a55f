"""How large a cache is."""

from __future__ import annotations

import pytest

from tampu.kvcache import CacheSize, KVCacheSpec


@pytest.mark.parametrize(
    ("spec", "own", "unified"),
    [
        pytest.param(KVCacheSpec(), 8 * 4096, 4096, id="all positions"),
        pytest.param(KVCacheSpec(window=512), 8 * 1024 + 512, 2 * 1024 + 512, id="window"),
        pytest.param(KVCacheSpec(window=4000), 8 * 4096, 4096, id="wide window"),
    ],
)
def test_slots_share_the_cells_of_one_context_if_they_are_unified(
    spec: KVCacheSpec, own: int, unified: int
) -> None:
    assert CacheSize(8, 4096, 512).cells(spec) == own
    assert CacheSize(8, 4096, 512, kv_unified=True).cells(spec) == unified


@pytest.mark.parametrize(
    ("features", "slots"),
    [
        pytest.param(0, 8, id="no recurrent layers"),
        pytest.param(250_000, 8, id="states of 1 MB"),
        pytest.param(13_250_000, 2, id="states of 53 MB"),
        pytest.param(50_000_000, 1, id="states of 200 MB"),
    ],
)
def test_slots_are_fewer_where_their_states_are_large(features: int, slots: int) -> None:
    size = CacheSize(8, 4096, 512, 512 * 10**6, kv_unified=True)
    assert size.bounded(features).slots == slots
