"""Which texts the formats of strings allow."""

from __future__ import annotations

import re

import pytest

from tampu.sampling.schema_formats import conditions_of

FORMATS = {
    "date-time": (
        ["2026-11-26T20:04:04Z", "2024-02-29T00:00:00.123456789+01:00"],
        ["2026-11-26t20:04:04z", "2026-11-26T20:04:04z", "2026-11-26T20:04:04.1234567890Z",
         "2026-02-29T00:00:00Z", "0000-01-01T00:00:00Z", "2026-11-26T20:04:60Z"],
    ),
    "date": (["2024-02-29", "2000-02-29"], ["1900-02-29", "2026-04-31", "0000-01-01"]),
    "time": (["20:04:04Z", "20:04:04.5-00:30"], ["20:04:04z", "24:00:00Z", "20:04:04.1234567890Z"]),
    "duration": (
        ["P1Y2M3D", "PT1H", "P3DT4M5S", "P9W"],
        ["P", "PT", "P1", "p1d", f"P{'6' * 10}D", "P1W2D"],
    ),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
    "uuid4": (
        ["123e4567-e89b-42d3-a456-426614174000"], ["123e4567-e89b-12d3-a456-426614174000"],
    ),
    "byte": (["", "YQ==", "YWI=", "YWJj"], ["Y", "YQ", "YWJjZ"]),
    "base64url": (["YQ", "YQ==", "-_8"], ["Y", "+/8="]),
    "ipvanyaddress": (["1.2.3.4", "::1", "2001:db8::1"], ["256.1.1.1", ":::", "1.2.3"]),
    "ipv4network": (["10.0.0.0/8"], ["10.0.0.0/33", "10.0.0.0"]),
    "json-pointer": (["", "/a~1b/0"], ["a", "/~2"]),
    "char": (["é", "\n"], ["", "ab"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_a_pattern(name: str) -> None:
    pattern = (conditions_of(name) or {})["pattern"]
    allowed, forbidden = FORMATS[name]
    assert [text for text in allowed if not re.search(pattern, text)] == []
    assert [text for text in forbidden if re.search(pattern, text)] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int8", {"minimum": -128, "maximum": 127}),
        ("int16", {"minimum": -32768, "maximum": 32767}),
        ("ipv6", {"format": "ipv6"}),
        ("password", {}),
        ("path", {}),
        ("int64", {}),
        ("double", {}),
        ("uint16", {"minimum": 0, "maximum": 65535}),
        ("guid", conditions_of("uuid")),
        ("url", {"format": "uri"}),
        ("phone", None),
        ("regex", None),
        ("", None),
    ],
)
def test_other_formats_are_limits_or_nothing(name: str, expected: object) -> None:
    assert conditions_of(name) == expected
