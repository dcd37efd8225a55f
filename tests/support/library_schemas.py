"""Schemas in the forms in which generators of several languages write them.

`ENFORCED` wholly; `IGNORED` with the places of what is left out.
"""

from __future__ import annotations

from typing import Any

_DRAFT7 = "http://json-schema.org/draft-07/schema#"
_DRAFT2020 = "https://json-schema.org/draft/2020-12/schema"
_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+"
    r"[A-Za-z]{2,}$"
)
_UUID = (
    r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12})$"
)
_SAFE = 9007199254740991


def _object(schema: str | None = None, **properties: Any) -> dict[str, Any]:
    """Return a closed object with required properties."""
    named = {"$schema": schema} if schema else {}
    return {
        **named,
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


ENFORCED: dict[str, Any] = {
    # zod-to-json-schema (zod 3)
    "zod 3: object": _object(
        _DRAFT7,
        name={"type": "string", "minLength": 1, "maxLength": 4, "description": "a name"},
        age={"type": "integer", "exclusiveMinimum": 0},
        tags={"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        role={"type": "string", "enum": ["admin", "user"], "default": "user"},
    ),
    "zod 3: nullable and union": _object(
        _DRAFT7,
        a={"type": ["string", "null"], "maxLength": 3},
        b={"anyOf": [{"type": "string", "const": "x"}, {"type": "number"}, {"not": {}}]},
        c={"type": ["string", "number"], "maxLength": 2},
    ),
    "zod 3: tuple": {
        "$schema": _DRAFT7,
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": [{"type": "string", "maxLength": 3}, {"type": "number"}],
    },
    "zod 3: record": {
        "$schema": _DRAFT7,
        "type": "object",
        "additionalProperties": {"type": "number"},
        "propertyNames": {"minLength": 2},
    },
    "zod 3: record of an enum": {
        "$schema": _DRAFT7,
        "type": "object",
        "additionalProperties": {"type": "boolean"},
        "propertyNames": {"enum": ["a", "b"]},
    },
    "zod 3: named": {
        "$ref": "#/definitions/Node",
        "definitions": {
            "Node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/definitions/Node"}, {"type": "null"}]},
                },
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$schema": _DRAFT7,
    },
    "zod 3: root references": _object(
        _DRAFT7, a=_object(n={"type": "integer"}), b={"$ref": "#/properties/a"}
    ),
    "zod 3: any and never": {
        "$schema": _DRAFT7,
        "type": "object",
        "properties": {"a": {}, "b": {"not": {}}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "zod 3: OpenAPI 3": _object(
        a={"type": "string", "nullable": True, "maxLength": 3},
        b={"type": "number", "minimum": 0, "exclusiveMinimum": True},
    ),
    # z.toJSONSchema (zod 4)
    "zod 4: object": _object(
        _DRAFT2020,
        id={"type": "string", "format": "uuid", "pattern": _UUID},
        n={"type": "integer", "minimum": -_SAFE, "maximum": _SAFE},
        x={"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
        f={"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
    ),
    "zod 4: formats": _object(
        _DRAFT2020,
        d={"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        b={"type": "string", "format": "base64", "contentEncoding": "base64",
           "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"
           },
        i={"type": "string", "format": "ipv4"},
    ),
    "zod 4: tuple": {
        "$schema": _DRAFT2020,
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 2}, {"type": "null"}],
        "items": {"type": "boolean"},
        "maxItems": 3,
    },
    "zod 4: record": {
        "$schema": _DRAFT2020,
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "boolean"},
    },
    "zod 4: record of an enum": {
        "$schema": _DRAFT2020,
        "type": "object",
        "propertyNames": {"type": "string", "enum": ["a", "b"]},
        "additionalProperties": {"type": "number"},
        "required": ["a", "b"],
    },
    "zod 4: discriminated union": {
        "$schema": _DRAFT2020,
        "oneOf": [
            _object(kind={"type": "string", "const": "a"}, n={"type": "number"}),
            _object(kind={"type": "string", "const": "b"}),
        ],
    },
    "zod 4: recursive": {
        "$schema": _DRAFT2020,
        "$ref": "#/$defs/__schema0",
        "$defs": {
            "__schema0": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 3},
                    "sub": {"type": "array", "items": {"$ref": "#/$defs/__schema0"}, "maxItems": 1},
                },
                "required": ["name", "sub"],
                "additionalProperties": False,
            }
        },
    },
    "zod 4: intersection": {
        "$schema": _DRAFT2020,
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
    },
    "zod 4: draft 7": {
        "$schema": _DRAFT7,
        "type": "array",
        "items": [{"type": "number"}],
        "additionalItems": {"type": "null"},
        "maxItems": 2,
    },
    # TypeBox
    "TypeBox: object": {
        "$id": "T",
        "type": "object",
        "required": ["a", "u"],
        "properties": {
            "a": {"type": "integer", "minimum": 0},
            "u": {"anyOf": [{"const": "x", "type": "string"}, {"const": 1, "type": "number"}]},
            "o": {"type": "null"},
        },
    },
    "TypeBox: recursive": {
        "$id": "Node",
        "type": "object",
        "required": ["nodes"],
        "properties": {"nodes": {"type": "array", "items": {"$ref": "Node"}, "maxItems": 1}},
        "additionalProperties": False,
    },
    "TypeBox: tuple": {
        "type": "array",
        "items": [{"type": "number"}, {"type": "string", "maxLength": 2}],
        "additionalItems": False,
        "minItems": 2,
        "maxItems": 2,
    },
    "TypeBox: intersection": {
        "type": "object",
        "allOf": [
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "null"}}},
            {"type": "object", "required": ["b"], "properties": {"b": {"type": "null"}}},
        ],
        "unevaluatedProperties": False,
    },
    "TypeBox: record": {
        "type": "object",
        "patternProperties": {"^(.*)$": {"type": "number"}},
    },
    # Go: invopop/jsonschema, and Google's schemas
    "invopop": {
        "$schema": _DRAFT2020,
        "$id": "https://example.com/pkg/person",
        "$ref": "#/$defs/Person",
        "$defs": {
            "Person": {
                "properties": {
                    "name": {"type": "string", "maxLength": 4, "title": "the name"},
                    "born": {"type": "string", "format": "date-time"},
                    "friends": {"items": {"type": "integer"}, "type": "array", "maxItems": 1},
                    "meta": {"additionalProperties": {"type": "string", "maxLength": 2},
                             "type": "object"},
                    "raw": {"type": "string", "contentEncoding": "base64", "maxLength": 4},
                    "any": True,
                },
                "additionalProperties": False,
                "type": "object",
                "required": ["name", "born"],
            }
        },
    },
    "Google": {
        "type": "OBJECT",
        "properties": {
            "a": {"type": "STRING", "maxLength": "3", "nullable": True},
            "b": {"type": "ARRAY", "items": {"type": "INTEGER", "format": "int32"},
                  "maxItems": "2"},
            "c": {"type": "NUMBER", "format": "double"},
        },
        "required": ["a", "b"],
        "propertyOrdering": ["b", "a", "c"],
    },
    # JsonSchemaExporter and NJsonSchema, of C#
    "JsonSchemaExporter": {
        "type": ["object", "null"],
        "properties": {
            "Name": {"type": ["string", "null"], "maxLength": 3},
            "Id": {"type": "string", "format": "uuid"},
            "Count": {"type": ["string", "integer"], "pattern": "^-?(?:0|[1-9]\\d*)$"},
            "Kind": {"enum": ["A", "B", None]},
            "At": {"type": "string", "format": "date-time"},
            "Span": {"type": "string",
                     "pattern": "^-?(\\d+\\.)?\\d{2}:\\d{2}:\\d{2}(\\.\\d{1,7})?$"},
        },
        "required": ["Name", "Id"],
    },
    "NJsonSchema": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "title": "Person",
        "type": "object",
        "additionalProperties": False,
        "required": ["Id"],
        "properties": {
            "Id": {"type": "string", "format": "guid", "minLength": 1},
            "Age": {"type": "integer", "format": "int32", "maximum": 99.0, "minimum": 0.0},
            "Big": {"type": "integer", "format": "int64"},
            "Price": {"type": "number", "format": "decimal"},
            "Gender": {"description": "0 = Male", "x-enumNames": ["Male"], "enum": [0],
                       "type": "integer"},
            "Boss": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/Boss"}]},
            "Base": {"allOf": [{"$ref": "#/definitions/Boss"}], "readOnly": True},
            "Bytes": {"type": ["null", "string"], "format": "byte", "maxLength": 8},
        },
        "definitions": {
            "Boss": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"Name": {"type": ["null", "string"], "maxLength": 3}},
            }
        },
    },
    "OpenAPI: discriminator of references": {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}},
        "$defs": {
            "Cat": _object(kind={"type": "string", "enum": ["cat"]}),
            "Dog": _object(kind={"const": "dog"}, n={"type": "integer", "format": "int64"}),
        },
    },
}  # fmt: skip

IGNORED: dict[str, tuple[Any, list[str]]] = {
    "zod 3: set": (
        {"$schema": _DRAFT7, "type": "array", "uniqueItems": True, "items": {"type": "string"}},
        ["/uniqueItems"],
    ),
    "zod 4: email": (
        _object(_DRAFT2020, e={"type": "string", "format": "email", "pattern": _EMAIL}),
        ["/properties/e/pattern"],
    ),
    "zod 4: cuid": (
        {"type": "string", "format": "cuid", "pattern": "^[cC][^\\s-]{8,}$"},
        ["/format"],
    ),
    "TypeBox: not": (_object(a={"not": {"type": "string"}}), ["/properties/a/not"]),
    "TypeBox: contains": (
        {"type": "array", "contains": {"type": "number"}, "minContains": 1},
        ["/contains"],
    ),
    "NJsonSchema: time-span": ({"type": "string", "format": "time-span"}, ["/format"]),
    "Java: conditions": (
        {
            "type": "object",
            "properties": {"a": {"type": "null"}},
            "if": {"required": ["a"]},
            "then": {"required": ["b"]},
            "dependentRequired": {"a": ["b"]},
        },
        ["/dependentRequired", "/if"],
    ),
    "oneOf of references that overlap": (
        {
            "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {"a": {"type": "integer"}, "b": {"type": "number"}},
        },
        ["/oneOf"],
    ),
}
