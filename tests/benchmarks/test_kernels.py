"""The chart of speeds against the number of tokens."""

from benchmarks.kernels import WIDTH, chart
from tampu.bench import Result


def test_the_fastest_has_the_longest_bar():
    slow, fast = chart([Result("pp8", 0, 2, 50.0, 100.0, 0.5)]).splitlines()
    assert slow.split() == ["pp8", "tampu", "50.0", "█" * (WIDTH // 2)]
    assert fast.split() == ["pp8", "llama.cpp", "100.0", "█" * WIDTH]
