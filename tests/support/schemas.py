"""Schemas of the kinds that the JSON Schema Test Suite has, written for these tests.

`SUPPORTED` by kind; each is one that a model's answer must follow. `IGNORED` with the place that
the warning must name. `REFUSED` with a part of the reason.
"""

from __future__ import annotations

from typing import Any

LARGE = 1234567890123456789
INTEGER = {"type": "integer"}
STRING = {"type": "string", "maxLength": 8}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
FORMATS = (
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
)  # fmt: skip


def closed(**properties: Any) -> dict[str, Any]:
    """Return an object of exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def array(items: Any, **more: Any) -> dict[str, Any]:
    """Return an array of these items."""
    return {"type": "array", "items": items, **more}


def tree(name: str) -> dict[str, Any]:
    """Return a schema that leads back to itself."""
    node = {
        "type": "object",
        "properties": {"v": INTEGER, "c": array({"$ref": f"#/$defs/{name}"})},
        "required": ["v"],
        "additionalProperties": False,
    }
    return {"$ref": f"#/$defs/{name}", "$defs": {name: node}}


SUPPORTED: dict[str, list[Any]] = {
    "type": [
        {"type": kind}
        for kind in ("object", "array", "string", "number", "integer", "boolean", "null")
    ]
    + [
        {"type": ["integer", "null"]},
        {"type": ["string", "boolean"]},
        {"type": ["array", "object"]},
        {"type": ["null"]},
    ],
    "boolean schema": [
        True, {}, {"properties": {"a": True}}, {"items": True},
        {"type": "object", "properties": {"a": False}}, {"type": "array", "items": False},
    ],
    "const": [
        {"const": value}
        for value in (
            1, "a", None, True, False, 1.5, [], {}, [1, "b"], {"a": {"b": None}}, 'é\n"', -7, "", 0,
        )
    ],
    "enum": [
        {"enum": ["a", "b"]}, {"enum": [1, 2, 3]}, {"enum": [None]}, {"enum": ["x", 1, None, True]},
        {"enum": [{"a": 1}, [2]]}, {"enum": ["\u2028", "/", "\\"]}, {"enum": [[]]},
        {"type": "string", "enum": ["red", "green"]}, {"type": "integer", "enum": [1, 2]},
    ],
    "minimum": [{"type": "integer", "minimum": n} for n in (0, -5, 1000)]
    + [{"type": "number", "minimum": n} for n in (0.5, -2.25)]
    + [{"minimum": 3}],
    "maximum": [{"type": "integer", "maximum": n} for n in (0, -5, 1000)]
    + [{"type": "number", "maximum": n} for n in (0.5, -2.25)],
    "exclusiveMinimum": [
        {"type": "integer", "exclusiveMinimum": 4},
        {"type": "number", "exclusiveMinimum": -1},
    ],
    "exclusiveMaximum": [
        {"type": "integer", "exclusiveMaximum": 4},
        {"type": "number", "exclusiveMaximum": 1.5},
    ],
    "bounds": [
        {"type": "integer", "minimum": a, "maximum": b}
        for a, b in ((0, 9), (-3, 3), (95, 105), (7, 7), (-1000, -10), (0, 65535))
    ]
    + [
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.75},
    ],
    "multipleOf": [{"type": "integer", "multipleOf": n} for n in (2, 3, 10, 7)],
    "minLength": [{"type": "string", "minLength": n} for n in (0, 1, 5)] + [{"minLength": 2}],
    "maxLength": [{"type": "string", "maxLength": n} for n in (0, 1, 12)],
    "lengths": [{"type": "string", "minLength": 3, "maxLength": 3}],
    "pattern": [
        {"type": "string", "pattern": pattern}
        for pattern in (
            "^a+$", "^[A-Z]{2}[0-9]{3}$", "^(yes|no)$", "x", "^$", "\\d\\.\\d", '^[^"]{0,5}$',
            "^\\w{1,4}@\\w{1,4}$", "^a?b*c{2,3}$", "é|ü",
        )
    ]
    + [{"pattern": "^z$"}],
    "format": [{"type": "string", "format": name} for name in FORMATS],
    "items": [
        array(INTEGER), array(STRING), array(array(BOOLEAN)), array(closed(a=INTEGER)),
        array({"enum": [1]}), array({}), {"items": INTEGER},
    ],
    "prefixItems": [
        {"type": "array", "prefixItems": [INTEGER, STRING]},
        {"type": "array", "prefixItems": [INTEGER], "items": False},
        {"type": "array", "prefixItems": [INTEGER], "items": STRING, "minItems": 2},
    ],
    "minItems": [array(INTEGER, minItems=n) for n in (0, 1, 3)],
    "maxItems": [array(INTEGER, maxItems=n) for n in (0, 1, 3)],
    "counts": [array(BOOLEAN, minItems=2, maxItems=2), array(STRING, minItems=1, maxItems=4)],
    "properties": [
        closed(a=INTEGER), closed(a=INTEGER, b=STRING), closed(**{"a b": BOOLEAN}),
        closed(**{'q"\n': INTEGER}), closed(**{"": NUMBER}), closed(o=closed(i=INTEGER)),
        {"type": "object", "properties": {"a": INTEGER}},
        {"type": "object", "properties": {"a": INTEGER, "b": STRING}},
        {"properties": {"a": INTEGER}}, closed(**{f"p{i}": BOOLEAN for i in range(12)}),
    ],
    "required": [
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"b": INTEGER}, "required": ["a", "b"]},
        {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "required": ["b"],
            "additionalProperties": False,
        },
        {"required": []},
    ],
    "additionalProperties": [
        {"type": "object", "additionalProperties": kind}
        for kind in (INTEGER, STRING, BOOLEAN, False, True, array(INTEGER))
    ]
    + [{"type": "object", "properties": {"a": STRING}, "additionalProperties": INTEGER}],
    "patternProperties": [
        {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False},
        {
            "type": "object",
            "patternProperties": {"^[0-9]+$": BOOLEAN},
            "additionalProperties": False,
        },
        {"type": "object", "patternProperties": {"^x_": STRING}},
    ],
    "minProperties": [
        {"type": "object", "minProperties": 1},
        {"type": "object", "minProperties": 0},
        {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "required": ["a", "b"],
            "minProperties": 2,
        },
    ],
    "maxProperties": [{"type": "object", "maxProperties": n} for n in (0, 1, 2)],
    "anyOf": [
        {"anyOf": [INTEGER, STRING]},
        {"anyOf": [closed(a=INTEGER), closed(b=STRING)]},
        {"anyOf": [{"const": 1}, {"const": 2}]},
        {"anyOf": [{"type": "null"}, array(INTEGER)]},
        {"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 2}]},
        array({"anyOf": [INTEGER, {"type": "null"}]}, minItems=1),
    ],
    "oneOf": [
        {"oneOf": [INTEGER, STRING]},
        {"oneOf": [{"const": "a"}, {"const": "b"}]},
        {"oneOf": [closed(kind={"const": "x"}, v=INTEGER), closed(kind={"const": "y"})]},
    ],
    "allOf": [
        {"allOf": [INTEGER, {"minimum": 5}]},
        {"allOf": [{"type": "integer"}]},
        {
            "allOf": [
                {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
                {"properties": {"b": STRING}, "required": ["b"]},
            ]
        },
        {"allOf": [{"minLength": 2}, {"maxLength": 4}], "type": "string"},
    ],
    "ref": [
        {"$ref": "#/$defs/a", "$defs": {"a": INTEGER}},
        {
            "properties": {"x": {"$ref": "#/definitions/a~1b"}},
            "required": ["x"],
            "definitions": {"a/b": BOOLEAN},
            "type": "object",
        },
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": STRING}},
        closed(l={"$ref": "#/$defs/p"}, r={"$ref": "#/$defs/p"}) | {"$defs": {"p": INTEGER}},
        {"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": INTEGER}},
        {"type": "array", "prefixItems": [INTEGER, {"$ref": "#/prefixItems/0"}]},
        tree("node"),
        tree("a~0b".replace("~0", "")),
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
    ],
    "defs": [{"$defs": {"unused": {"type": "string"}}, "type": "integer"}],
    "anchor": [{"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "integer"}}}],
    "id": [{"$id": "http://example.org/s", "$ref": "#/$defs/a", "$defs": {"a": INTEGER}}],
    "annotations": [
        INTEGER
        | {
            "title": "t",
            "description": "d",
            "default": 5,
            "examples": [1],
            "deprecated": True,
            "readOnly": True,
            "writeOnly": False,
            "$comment": "c",
            "$schema": "https://json-schema.org/draft/2020-12/schema",
        }
    ],
    "unknown keyword": [INTEGER | {"x-order": 1}, {"type": "string", "nullable": False}],
    "content": [{"type": "string", "contentMediaType": "application/json", "maxLength": 9}],
    "combinations": [
        {"type": ["integer", "string"], "minimum": 3, "maxLength": 4},
        {"anyOf": [array(INTEGER, maxItems=2), closed(a=array(STRING, maxItems=2))]},
        closed(a={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}) | {"$defs": {"n": INTEGER}},
        {"enum": [1, "a", 2.5], "type": "string"},
        {"const": 3, "type": "integer"},
        {"type": "object", "patternProperties": {"^k": INTEGER}, "additionalProperties": BOOLEAN},
        array({"anyOf": [{"const": "x"}, closed(n=INTEGER)]}, minItems=1, maxItems=3),
        {"allOf": [{"anyOf": [INTEGER, STRING]}, {"type": "integer"}]},
        closed(a=closed(b=closed(c=closed(d={"enum": [None, False]})))),
        array(array(array({"const": 0}, maxItems=1), maxItems=1), maxItems=1),
        {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "maxProperties": 1},
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
        {"type": "string", "format": "date", "minLength": 10},
        {"type": "integer", "minimum": 10, "multipleOf": 5, "maximum": 50},
        {"items": {"type": "integer", "minimum": 0}, "minItems": 1, "type": "array"},
        {"type": "array", "prefixItems": [{"const": "v1"}], "items": INTEGER, "minItems": 1},
        {"properties": {"type": {"const": "object"}, "properties": INTEGER}, "type": "object"},
        {"type": "object", "additionalProperties": {"type": "object", "maxProperties": 1}},
    ],
    "large integers": [
        {"const": LARGE},
        {"enum": [LARGE, "a", None]},
        {"const": {"a": [LARGE, {"b": -LARGE}]}},
        {"type": "integer", "minimum": LARGE, "maximum": LARGE},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "minimum": -(10**30), "exclusiveMaximum": -LARGE},
        {"type": ["integer", "null"], "exclusiveMinimum": LARGE},
        {"type": "number", "minimum": LARGE},
        {"type": "number", "maximum": -LARGE},
        {"type": "number", "minimum": -1e22, "maximum": 1e22},
        {"type": "number", "minimum": -1e308, "maximum": 1e308},
        closed(id={"enum": [LARGE]}, name=STRING),
        {"type": "object", "properties": {"id": {"const": LARGE}}},
        {"type": "object", "properties": {"id": {"const": LARGE}, "b": {}}, "required": ["b"]},
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": LARGE}},
        array({"const": LARGE}, minItems=1, maxItems=2),
        {"type": "array", "prefixItems": [{"const": LARGE}, STRING], "items": INTEGER},
        {"anyOf": [closed(a={"const": LARGE}), closed(b=INTEGER)]},
        {
            "$ref": "#/$defs/a/b",
            "$defs": {
                "a": {"b": closed(id={"const": LARGE}, x={"$ref": "#/$defs/c"})},
                "c": STRING,
            },
        },
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": closed(
                    id={"const": LARGE},
                    next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                )
            },
        },
    ],
    "no condition": [
        array(INTEGER, uniqueItems=False),
        {"type": "object", "unevaluatedProperties": True},
    ],
    "as people ask": [
        closed(name=STRING, age={"type": "integer", "minimum": 0, "maximum": 130}),
        closed(
            city=STRING,
            days=array(
                closed(date={"type": "string", "format": "date"}, high=INTEGER, low=INTEGER),
                minItems=1,
                maxItems=2,
            ),
        ),
        closed(sentiment={"enum": ["positive", "negative", "neutral"]}, score=NUMBER),
        closed(steps=array(closed(explanation=STRING, output=STRING), maxItems=2), answer=STRING),
        closed(
            id={"type": "string", "format": "uuid"},
            tags=array(STRING, maxItems=3),
            parent={"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
        ),
        closed(
            f={"enum": ["get_weather"]}, arguments=closed(city=STRING, unit={"enum": ["C", "F"]})
        ),
        closed(
            items=array(
                closed(
                    sku={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
                    price={"type": "number", "minimum": 0},
                    quantity={"type": "integer", "minimum": 1},
                ),
                minItems=1,
            )
        ),
        closed(ok=BOOLEAN, error={"type": ["string", "null"], "maxLength": 5}),
    ],
}  # fmt: skip

IGNORED: list[tuple[Any, str]] = [
    (array(INTEGER, uniqueItems=True), "/uniqueItems"),
    (array(INTEGER, contains={"const": 1}), "/contains"),
    ({"not": INTEGER}, "/not"),
    (closed(a={"if": INTEGER, "then": {}, "else": {}}), "/properties/a/if"),
    ({"type": "object", "propertyNames": {"not": {}}}, "/propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "/dependentRequired"),
    ({"type": "object", "dependentSchemas": {"a": {}}}, "/dependentSchemas"),
    ({"type": "object", "dependencies": {"a": ["b"]}}, "/dependencies"),
    ({"type": "object", "unevaluatedProperties": False, "anyOf": [{}]}, "/unevaluatedProperties"),
    ({"type": "array", "unevaluatedItems": False, "anyOf": [{}]}, "/unevaluatedItems"),
    ({"type": "object", "minProperties": 3}, "/minProperties"),
    ({"type": "string", "format": "idn-email"}, "/format"),
    ({"type": "string", "pattern": "^(?=a)b"}, "/pattern"),
    ({"type": "string", "pattern": r"(a)\1"}, "/pattern"),
    ({"oneOf": [INTEGER, {"minimum": 2}]}, "/oneOf"),
    (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "maxProperties": 1,
        },
        "/maxProperties",
    ),
]

REFUSED: list[tuple[Any, str]] = [
    ({"$ref": "http://localhost:1234/integer.json"}, "/$ref"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable"),
    ({"not": {}}, "it allows nothing"),
    ({"type": "null", "allOf": [{"not": {}}]}, "schema is false"),
    ({"type": "string", "pattern": "["}, "unclosed"),
    ({"type": "strnig"}, "schema: /type: 'strnig' is not a JSON type"),
    ({"$ref": "#/$defs/missing"}, "schema: /$ref: there is nothing at '#/$defs/missing'"),
    ({"$ref": "#"}, "no text at all"),
    ({"type": "integer", "minimum": LARGE, "maximum": LARGE - 1}, "no number is within its bounds"),
    ({"const": LARGE, "type": "string"}, "no value is of its type"),
    ({"type": "integer", "minimum": LARGE, "multipleOf": 7}, "/multipleOf: it is not supported"),
    ({"allOf": [{"const": LARGE}, INTEGER]}, "schema: /allOf: it is not supported"),
    ({"enum": []}, "empty"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.25}, "/exclusiveMinimum"),
    ({"minimum": -0.5, "exclusiveMaximum": 0}, "/exclusiveMaximum"),
]
