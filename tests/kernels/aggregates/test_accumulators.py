"""What a checkpoint says of a user-defined aggregate never runs code (docs/state.md)."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import os
import pickle
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import OperatorError
from krishiv_py.kernels.aggregates import Rows, kernel_for
from krishiv_py.kernels.aggregates.user.accumulators import StateTypes

PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(),
        st.dates(),
        st.datetimes(),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.fractions(),
        st.uuids(),
        st.complex_numbers(allow_nan=False),
        st.sampled_from([dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), np.float64(0.1), np.int32(7), bytearray(b"x")]),
    ),
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


class Total:
    """An accumulator of a class of its own."""

    def __init__(self, value: object = 0) -> None:
        self.value = value


class Other(Total):
    """A class that no aggregate names."""


class Attack:
    """What an ordinary pickle would run."""

    def __reduce__(self) -> Any:
        return os.getenv, ("HOME",)


class Keeps:
    """Keeps the last value in whatever `put` makes of it."""

    def create(self) -> Any:
        return Total()

    def add(self, accumulator: Any, value: Any) -> Any:
        accumulator.value = value
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        return right

    def finish(self, accumulator: Any) -> Any:
        return accumulator.value


class KeepsOther(Keeps):
    def add(self, accumulator: Any, value: Any) -> Any:
        return Total(Other(value))


class Declares(KeepsOther):
    state_types = (Other,)

    def finish(self, accumulator: Any) -> Any:
        return accumulator.value.value


def run(aggregator: Any) -> list[Any]:
    of = kernel_for(kv.udaf(aggregator, "x", pa.int64()), pa.int64())
    partials = of.create(Rows(pa.array([1, 2]), np.zeros(2, np.int64), np.zeros(2, np.int64), 1))
    found: list[Any] = of.finish(of.merge(partials, np.zeros(1, np.int64), 1)).to_pylist()
    return found


@given(value=PLAIN)
def test_plain_values_come_back(value: Any) -> None:
    types = StateTypes([])
    found = types.loads(types.dumps(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset("ab"),
        collections.Counter("aab"),
        collections.deque([1], maxlen=2),
        collections.OrderedDict(a=1),
        collections.defaultdict(list, a=[1]),
        decimal.Decimal("1.50"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=5),
        dt.time(1, 2),
    ],
    ids=lambda v: type(v).__name__,
)
def test_known_types_come_back(value: object) -> None:
    types = StateTypes([])
    assert types.loads(types.dumps(value)) == value


def test_arrays_come_back() -> None:
    types = StateTypes([])
    for array in (np.arange(5), np.array(["a", "bc"]), np.array([[1.5, 2.5]]).T, np.array(["2026-01-01"], "M8[us]")):
        assert np.array_equal(types.loads(types.dumps(array)), array)


def test_the_class_of_an_empty_accumulator_needs_no_word() -> None:
    assert run(Keeps()) == [2]


def test_other_classes_are_named_or_refused_when_written() -> None:
    with pytest.raises(OperatorError, match=r"what `add` returned cannot be kept in state.*Other.*state_types"):
        run(KeepsOther())
    assert run(Declares()) == [2]


@pytest.mark.parametrize("held", [Attack(), [Attack()], print, os.getenv, lambda: 0, Other, open])
def test_code_is_refused_when_written(held: object) -> None:
    with pytest.raises((TypeError, pickle.PicklingError)):
        StateTypes([Total]).dumps(Total(held))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("held", [Attack(), print, os.getenv, Other(), eval])
def test_code_is_refused_when_read(held: object, protocol: int) -> None:
    of = kernel_for(kv.udaf(Keeps(), "x", pa.int64()), pa.int64())
    why = "may hold" if protocol > 3 else ""  # older ones name things by lines, which are not read at all
    with pytest.raises(OperatorError, match=f"an accumulator in state cannot be read.*{why}"):
        of.finish([pa.array([pickle.dumps(held, protocol)], pa.binary())])


def test_damaged_bytes_are_an_error_of_ours() -> None:
    of = kernel_for(kv.udaf(Keeps(), "x", pa.int64()), pa.int64())
    for blob in (b"", b"\x80", b"nonsense", StateTypes([Total]).dumps(Total(5))[:-3]):
        with pytest.raises(OperatorError, match="cannot be read"):
            of.finish([pa.array([blob], pa.binary())])
