"""Values and records of which some are odd: each is what it is alone, and no other is taken slowly for it."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py.connectors import values
from krishiv_py.connectors.fit import fit
from krishiv_py.connectors.kafka.formats.avro import decode_avro
from krishiv_py.connectors.values import UnfitError, column, fitting
from tests.connectors.odd_records import AVRO, AVRO_SCHEMA, AVRO_TEXT, FIT, FIT_SCHEMA, FIT_TEXT, avro_row, fit_row

VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    127,
    128,
    2**31,
    2**53 + 1,
    2**60,
    2**63,
    10**30,
    1.0,
    1.5,
    -0.0,
    float("nan"),
    1e39,
    1e400,
]
VALUES += [
    np.int8(5),
    np.int64(2**40),
    np.float32(1.5),
    np.float64(2),
    np.bool_(True),
    np.datetime64("2024-05-01T10:00"),
    np.datetime64("NaT"),
]
VALUES += [
    Decimal("1.50"),
    Decimal("1.555"),
    Decimal("NaN"),
    Decimal("1e30"),
    "a",
    "ä",
    "\ud800",
    "",
    b"a",
    b"\xff",
    bytearray(b"b"),
    [1],
    {"a": 1},
]
VALUES += [
    "2024-05-01T10:00:00Z",
    "2024-05-01 10:00:00.123456+02:00",
    "2024-05-01T10:00:00",
    "2024-05-01T10:00Z",
    "2024-05-01T10:00",
]
VALUES += [
    "2024-05-01T10:00:00.123456000Z",
    "2024-05-01T10:00:00.123456789Z",
    "2024-05-01",
    "2024-02-30",
    "2024-02-30T10:00:00Z",
    "2024-05-01T10",
]
VALUES += [
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2024-05-01T10:99:00Z",
    "1714557600000",
    "2024-05-01T10:00:00+0200",
]
VALUES += [dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, 10), dt.datetime(2024, 5, 1, 10, tzinfo=dt.timezone.utc)]
VALUES += [
    dt.datetime(2024, 5, 1, 10, tzinfo=ZoneInfo("Europe/Paris")),
    dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5))),
]
VALUES += [dt.timedelta(seconds=1), np.timedelta64(5, "ms"), pa.scalar(5), pa.scalar("a"), np.array(7), object()]
VALUES += [dt.datetime(2024, 5, 1, 10, tzinfo=dt.timezone(dt.timedelta(hours=2, microseconds=each))) for each in (0, 5)]
OF_NUMPY: list[np.datetime64[Any]] = [
    np.datetime64(text) for text in ("2024", "2024-05", "2024-05-01", "0000-12-31", "9999-12-31", "10000-01-01")
]
OF_NUMPY += [np.datetime64("2024-05-01T10:00:00.123456" + digits) for digits in ("", "000", "789", "000001")]
OF_NUMPY += [np.datetime64("NaT", "D"), np.datetime64("NaT", "ns"), np.datetime64(7, ("D", 3)), np.datetime64(10**18, "as")]
OF_NUMPY += [np.datetime64(2**62, "s"), np.datetime64(-(2**62), "ms"), np.datetime64(10**14, "D")]
VALUES += OF_NUMPY
TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
]
TYPES += [
    pa.timestamp("us", "UTC"),
    pa.duration("us"),
    pa.decimal128(6, 2),
    pa.list_(pa.int64()),
    pa.struct([("a", pa.int64())]),
]


def alone(value: object, type_: pa.DataType) -> pa.Array | str:
    """Return a value as a column of its own, or why it does not fit."""
    try:
        return column([value], type_)
    except UnfitError as problem:
        return f"{problem} {problem.hint} {problem.path}"


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_value_is_what_it_is_alone(type_: pa.DataType) -> None:
    each = [alone(value, type_) for value in VALUES]
    fits = [i for i, one in enumerate(each) if not isinstance(one, str)]
    chance = random.Random(str(type_))
    for _ in range(30):
        some = chance.choices(range(len(VALUES)), k=chance.choice([0, 1, 5, 60]))
        wrong = [(place, each[i]) for place, i in enumerate(some) if isinstance(each[i], str)]
        array, unfit = fitting([VALUES[i] for i in some], type_)
        array.validate(full=True)
        assert [(i, f"{problem} {problem.hint} {problem.path}") for i, problem in sorted(unfit.items())] == wrong
        nulls = pa.nulls(1, type_)
        assert str(array) == str(
            pa.concat_arrays([pa.nulls(0, type_), *(nulls if isinstance(each[i], str) else each[i] for i in some)])
        )
        if wrong:
            with pytest.raises(UnfitError) as caught:
                column([VALUES[i] for i in some], type_)
            assert (caught.value.row, f"{caught.value} {caught.value.hint} {caught.value.path}") == wrong[0]
        good = chance.choices(fits, k=50)
        assert str(column([VALUES[i] for i in good], type_)) == str(pa.concat_arrays([each[i] for i in good]))


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()], ids=str)
@pytest.mark.parametrize("value", OF_NUMPY, ids=repr)
def test_times_of_numpy_are_taken_together_as_they_are_one_by_one(value: np.datetime64[Any], type_: pa.DataType) -> None:
    unfit: dict[int, UnfitError] = {}
    careful = values._rules(type_)[1]
    assert careful is not None
    one_by_one = values._carefully([value], [0], type_, careful, unfit)
    array, problems = fitting([value] * 3, type_)
    assert array.cast(pa.int64() if type_ != pa.date32() else pa.int32()).to_pylist() == (
        one_by_one.cast(pa.int64() if type_ != pa.date32() else pa.int32()).to_pylist() * 3
    )
    assert [(str(problem), problem.hint) for problem in problems.values()] == [(str(p), p.hint) for p in unfit.values()] * 3


DECODERS: dict[str, tuple[pa.Schema, str, Callable[[int], bytes], Any]] = {
    "avro": (AVRO_SCHEMA, AVRO_TEXT, avro_row, AVRO),
    "fit": (FIT_SCHEMA, FIT_TEXT, fit_row, FIT),
}


@pytest.mark.parametrize("share", [100, 2, 1])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_record_is_what_it_is_alone(decoder: str, share: int) -> None:
    schema, text, row, kinds = DECODERS[decoder]
    for kind in [*kinds, "mix"]:
        change = [kinds[kind]] if kind in kinds else list(kinds.values())
        records = [row(i % 31) if i % share else change[i // share % len(change)](row(i % 31)) for i in range(400)]
        each = {record: decode_avro(schema, None, text, [record]) for record in set(records)}
        actual = decode_avro(schema, None, text, records)
        assert list(actual.bad) == [(i, why) for i, record in enumerate(records) for _, why in each[record].bad], kind
        batches = [each[record].batch for record in records]
        assert actual.batch.equals(
            pa.Table.from_batches(batches).combine_chunks().to_batches()[0] if actual.batch.num_rows else actual.batch
        )
        assert actual.batch.num_rows == sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize(
    "odd", ["2024-05-01T10:00:00", dt.datetime(2024, 5, 1), np.datetime64("2024-05-01"), "2024-05-01T10"], ids=repr
)
def test_only_odd_times_are_taken_alone(odd: object, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, careful = list[object](), values._time

    def counted(value: Any, type_: pa.DataType) -> Any:
        seen.append(value)
        return careful(value, type_)

    monkeypatch.setattr(values, "_time", counted)
    array = column(
        [odd if i % 100 == 7 else f"2024-05-01T10:00:{i % 60:02d}Z" for i in range(1_000)], pa.timestamp("us", "UTC")
    )
    assert array.null_count == 0 and len(seen) <= 10


def test_a_column_of_another_type_is_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = list[int]()

    def counted(array: pa.Array, *rest: Any) -> pa.Array:
        fitted.append(len(array))
        return fit(array, *rest)

    monkeypatch.setattr("krishiv_py.connectors.kafka.formats.decoding.fit", counted)
    wanted = pa.schema([("user", pa.string()), ("n", pa.bool_())])
    decoded = decode_avro(wanted, None, AVRO_TEXT, [avro_row(i) for i in range(500)])
    assert len(decoded.bad) == 500 and "is not a boolean" in decoded.bad[0][1]
    assert len(fitted) < 10
