"""Classes of rows as schemas, and their objects as rows."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, TypedDict

import attrs
import pyarrow as pa
import pytest
from typing_extensions import NotRequired

from krishiv_py import Session, count
from krishiv_py.errors import SchemaError
from krishiv_py.plan.schema import as_schema
from krishiv_py.testing import Driver, stream_of

pydantic = pytest.importorskip("pydantic")
UserId = NewType("UserId", int)


@dataclasses.dataclass
class Place:
    city: str
    zip: int | None = None


@dataclasses.dataclass
class Data:
    user: str
    at: int
    place: Place | None = None
    kind: ClassVar[str] = "data"


@attrs.frozen
class Attrs:
    user: str
    at: int
    place: Place | None = None


class Typed(TypedDict):
    user: str
    at: int
    place: NotRequired[Place]


class Named(NamedTuple):
    user: str
    at: int
    place: Place | None = None


class Model(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    user: str
    at: int
    place: Place | None = None


KINDS: list[Any] = [Data, Attrs, Typed, Named, Model]
EXPECTED = as_schema("user string, at bigint, place struct<city: string, zip: bigint>")


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_is_a_schema_and_its_objects_are_rows(kind: Any) -> None:
    assert as_schema(kind) == EXPECTED
    rows = [kind(user="a", at=1), kind(user="b", at=2, place=Place("x", 5))]
    driver = Driver(stream_of(kind))
    wanted = [{"user": "a", "at": 1, "place": None}, {"user": "b", "at": 2, "place": {"city": "x", "zip": 5}}]
    assert driver.send(rows).results.to_pylist() == wanted
    with Session.in_process() as session:
        stream, sender = session.memory_stream(kind)
        sender.send(rows)
        sender.close()
        assert stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).collect().num_rows == 2


@dataclasses.dataclass
class Many:
    flag: bool
    number: float
    raw: bytes
    moment: dt.datetime
    day: dt.date
    money: decimal.Decimal
    small: Annotated[int, pa.int32()]
    user: UserId
    colour: Literal["red", "green"]
    names: list[str]
    several: tuple[int, ...]
    by_name: dict[str, float]
    nested: list[Place]


def test_types_of_fields() -> None:
    assert as_schema(Many) == as_schema(
        "flag boolean, number double, raw binary, moment timestamp, day date, money decimal(38, 18), small int, user bigint,"
        "colour string, names array<string>, several array<bigint>, by_name map<string, double>,"
        "nested array<struct<city: string, zip: bigint>>"
    )


@dataclasses.dataclass
class Odd:
    value: object


@dataclasses.dataclass
class Unknown:
    value: Nowhere  # type: ignore[name-defined]  # noqa: F821


@dataclasses.dataclass
class Two:
    value: int | str


@dataclasses.dataclass
class Empty:
    pass


class Plain:
    value: int


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Odd, "'value'"),
        (Unknown, "looked up"),
        (Two, "'value'"),
        (Empty, "no fields"),
        (Plain, 'write "value bigint"'),
        (int, "not a schema"),
    ],
)
def test_classes_that_are_no_schema(kind: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        as_schema(kind)


def test_a_value_of_another_type_is_named() -> None:
    with pytest.raises(SchemaError, match="row 1, column 'at'"):
        Driver(stream_of(Data)).send([Data("a", 1), Data("b", "soon")])  # type: ignore[arg-type]
