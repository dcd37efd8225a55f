"""The chart of speeds against the number of tokens."""

import xml.etree.ElementTree as ElementTree

from tampu.bench.bench import Result
from tampu.bench.charts import BOTTOM, TOP, WIDTH, chart, svg_chart


def test_the_fastest_has_the_longest_bar() -> None:
    slow, fast = chart([Result("pp8", 0, 2, 50.0, 100.0, 0.5)]).splitlines()
    assert slow.split() == ["pp8", "tampu", "50.0", "█" * (WIDTH // 2)]
    assert fast.split() == ["pp8", "llama.cpp", "100.0", "█" * WIDTH]


def test_svg_has_a_line_for_each_engine_and_the_faster_is_higher() -> None:
    results = [Result(f"pp{2**n}", 0, 2, 64.0 * 2**n, 16.0 * 2**n, 0.5) for n in range(8)]
    drawn = ElementTree.fromstring(svg_chart(results, "a <model>"))
    lines = [each.get("points", "").split() for each in drawn if each.tag.endswith("polyline")]
    ours, theirs = ([float(point.split(",")[1]) for point in line] for line in lines)
    assert len(ours) == len(theirs) == 8
    assert all(upper < lower for upper, lower in zip(ours, theirs, strict=True))
    assert TOP <= min(ours) < max(theirs) <= BOTTOM


def test_without_a_peer_only_tampu_is_drawn() -> None:
    results = [Result(f"pp{2**n}", 0, 2, 64.0 * 2**n, None, None) for n in range(8)]
    assert "llama.cpp" not in chart(results)
    drawn = svg_chart(results, "a model")
    assert drawn.count("<polyline") == 1
    assert "llama.cpp" not in drawn
