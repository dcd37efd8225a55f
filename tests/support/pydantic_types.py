"""Types as people write them with pydantic, whose schemas answers must follow."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**60 + 1


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(max_length=5)


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Owner(BaseModel):
    """An owner of pets."""

    pet: Pet
    others: list[Pet] = Field(default_factory=list, max_length=1)
    last: Pet | None = None


class Node(BaseModel):
    value: int = Field(ge=0, le=9)
    children: list[Node] = Field(max_length=1)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", title="A closed one")
    a: int = Field(alias="b", description="the number", examples=[1], deprecated=True)
    c: str = Field("x", json_schema_extra={"x-order": 2})


class Limits(BaseModel):
    low: int = Field(gt=0, lt=10)
    high: float = Field(ge=0.5, le=1.5)
    even: int = Field(multiple_of=2)
    text: str = Field(min_length=1, max_length=3, pattern="^[a-c]+$")
    id: int = Field(ge=-(2**63), le=2**63 - 1)


class Point(NamedTuple):
    x: int
    y: int = 0


class Movie(TypedDict, total=False):
    name: str
    year: int


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T] = Field(max_length=1)
    total: int


@pydantic.dataclasses.dataclass
class Item:
    name: str
    tags: list[str] = Field(default_factory=list, max_length=1)


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    when: dt.datetime
    by: Annotated[str, Field(max_length=4)] | None = None


TYPES: dict[str, Any] = {
    "int": int, "float": float, "str": str, "bool": bool, "None": None, "Any": Any,
    "int | None": int | None, "int | str": int | str, "list[int]": list[int],
    "list[Any]": list[Any], "tuple[int, str]": tuple[int, str],
    "tuple[int, ...]": tuple[int, ...], "set[Color]": set[Color], "set[bool]": set[bool],
    "frozenset[Literal]": frozenset[Literal[1, 2]], "dict[str, int]": dict[str, int],
    "dict[Color, int]": dict[Color, int], "dict[int, str]": dict[int, str],
    "dict[UUID, int]": dict[uuid.UUID, int],
    "dict[constr, int]": dict[Annotated[str, Field(max_length=3)], int],
    "dict[Literal, Any]": dict[Literal["a", "b"], Any], "Color": Color, "Level": Level,
    "Literal": Literal["a", 1, None, True], "Literal of one": Literal["only"],
    "datetime": dt.datetime, "date": dt.date, "time": dt.time, "timedelta": dt.timedelta,
    "AwareDatetime": pydantic.AwareDatetime, "UUID": uuid.UUID, "UUID4": pydantic.UUID4,
    "UUID1": pydantic.UUID1, "Decimal": decimal.Decimal, "Path": pathlib.Path,
    "NewPath": pydantic.NewPath, "SecretStr": pydantic.SecretStr, "bytes": bytes,
    "SecretBytes": pydantic.SecretBytes, "Base64Bytes": pydantic.Base64Bytes,
    "Base64Str": pydantic.Base64Str, "Base64UrlStr": pydantic.Base64UrlStr,
    "IPv4Address": ipaddress.IPv4Address, "IPv6Address": ipaddress.IPv6Address,
    "IPvAnyAddress": pydantic.IPvAnyAddress, "IPv4Interface": ipaddress.IPv4Interface,
    "AnyUrl": pydantic.AnyUrl, "Json": pydantic.Json[list[int]],
    "conint": Annotated[int, Field(ge=2**53 + 1, lt=2**70)], "PositiveInt": pydantic.PositiveInt,
    "NonNegativeFloat": pydantic.NonNegativeFloat, "FiniteFloat": pydantic.FiniteFloat,
    "conlist": Annotated[list[int], Field(min_length=2, max_length=3)],
    "StringConstraints": Annotated[str, pydantic.StringConstraints(max_length=3, pattern="^a")],
    "Cat": Cat, "Pet": Pet, "Owner": Owner, "list[Pet]": list[Pet], "Pet | None": Pet | None,
    "Node": Node, "Closed": Closed, "Limits": Limits, "Point": Point, "Movie": Movie,
    "Page[Item]": Page[Item], "Item": Item, "Model": Model, "dict[str, Model]": dict[str, Model],
    "Cat | Dog": Cat | Dog, "list[Cat | None]": list[Cat | None],
}  # fmt: skip
# What cannot be enforced: the answer is valid JSON of the right types, and a warning says what may
# be wrong.
IGNORED: dict[str, tuple[Any, str]] = {
    "set[str]": (set[str], "/uniqueItems"),
    "list[set[int]]": (list[set[int]], "/items/uniqueItems"),
    "Pattern": (re.Pattern[str], "/format"),
    "PostgresDsn": (pydantic.PostgresDsn, "/format"),
}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema that pydantic writes for a type."""
    return TypeAdapter(kind).json_schema()
