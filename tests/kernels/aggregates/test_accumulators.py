"""What a checkpoint says of a user-defined aggregate never runs code (docs/state.md)."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import os
import pickle
import subprocess
import sys
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
from krishiv_py.kernels.aggregates.user import StateTypes

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
    actual: list[Any] = of.finish(of.merge(partials, np.zeros(1, np.int64), 1)).to_pylist()
    return actual


@given(value=PLAIN)
def test_plain_values_come_back(value: Any) -> None:
    types = StateTypes([])
    actual = types.loads(types.dumps(value))
    assert actual == value
    assert type(actual) is type(value)


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


NUMPY: list[Any] = [
    np.arange(24).reshape(2, 3, 4)[:, ::2, ::-1],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    np.array(["a", "bc", "\U0010ffff"]),
    np.array([b"a", b"bc"]),
    np.array(["2026-01-01", "NaT"], "M8[us]"),
    np.array([3], "m8[25s]"),
    np.array([True, False]),
    np.array(5.0),
    np.zeros((0, 3)),
    np.array([1], ">i4"),
    np.array([(1, [1, 2], "x")], [("a", "i4"), ("b", ">f8", (2,)), ("c", "U3")]),
    np.zeros(2, np.dtype([("a", "i1"), ("b", "i8")], align=True)),
    np.float64(1.5),
    np.str_("abc"),
    np.str_(""),
    np.bytes_(b"x\0y"),
    np.datetime64("2026-01-01", "us"),
    np.bool_(True),
    np.array([(1, 2.5)], [("a", "i4"), ("b", ">f8")])[0],
]


@pytest.mark.parametrize("value", NUMPY, ids=lambda v: f"{type(v).__name__}-{v.dtype}")
def test_numpy_values_come_back_from_our_form_and_from_numpys(value: Any) -> None:
    types = StateTypes([])
    own = types.loads(types.dumps(value))
    assert type(own) is type(value) and own.dtype == value.dtype
    assert repr(own.tolist()) == repr(value.tolist())
    by_numpy = types.loads(pickle.dumps(value, 5))  # as versions before wrote it
    assert repr(by_numpy.tolist()) == repr(value.tolist())
    assert types.dumps(by_numpy) == types.dumps(value)  # written as any other from then on


@pytest.mark.parametrize(
    "held",
    [np.array([object()]), np.zeros(1, [("a", "O")]), np.dtype("f8"), np.float64, np.ma.array([1]), np.ones(1, np.object_)[:0]],
    ids=["objects", "a field of objects", "a dtype", "a class", "a masked array", "not objects"],
)
def test_numpy_values_with_pointers_or_code_are_refused_when_written(held: object) -> None:
    with pytest.raises(TypeError, match="may not hold"):
        StateTypes([np.ndarray, np.float64]).dumps(held)


class Forged:
    """Pickles as `function(*args)` with `state` set on what it gives."""

    def __init__(self, function: Any, args: tuple[Any, ...], *state: Any) -> None:
        self.reduced = (function, args, *state)

    def __reduce__(self) -> Any:
        return self.reduced


def _forged_dtype(flags: int, inner: Any = "O") -> Forged:
    made: Any = np.dtype([("a", inner)]).__reduce__()
    return Forged(np.dtype, made[1], (*made[2][:-1], flags))


def forgeries() -> dict[str, bytes]:
    """Pickles that crash a process, change one of its classes or reach code, by name."""
    array: Any = np.zeros(1)
    rebuild, args, _ = array.__reduce__()
    frombuffer, scalar = array.__reduce_ex__(5)[0], array[0].__reduce__()[0]
    floats = Forged(np.dtype, ("f8",), (3, "<", None, None, None, -1, -1, 0))
    texts = Forged(np.dtype, ("U1",), (3, "<", None, None, None, 4, 4, 8))
    actual: dict[str, Any] = {}
    for flags in (0, 1, 0x01 | 0x08 | 0x10, 63, -1):
        dtype = _forged_dtype(flags)
        actual[f"buffer {flags}"] = Forged(frombuffer, (b"A" * 8, dtype, (1,), "C"))
        actual[f"array {flags}"] = Forged(rebuild, args, (1, (1,), dtype, False, b"A" * 8))
        actual[f"scalar {flags}"] = Forged(scalar, (dtype, b"A" * 8))
        text = Forged(np.dtype, ("S8", False, True), (3, "|", None, None, None, 8, 1, flags))
        actual[f"text {flags}"] = [Forged(frombuffer, (b"A" * 8, text, (1 << 62,), "C")), text]
    actual["object"] = Forged(scalar, (Forged(np.dtype, ("O8", False, True)), b"A" * 8))
    actual["list"] = Forged(rebuild, args, (1, (1,), Forged(np.dtype, ("O8",)), False, [1]))
    actual["short"] = Forged(rebuild, args, (1, (1 << 61,), floats, False, b""))
    actual["empty array"] = Forged(np.ndarray, ((10,), "O"))
    actual["size"] = Forged(rebuild, args, (1, (-1,), Forged(np.dtype, ("f8",)), False, b"A" * 8))
    actual["characters"] = Forged(frombuffer, (b"\xff" * 4, texts, (1,), "C"))
    actual["date"] = Forged(dt.date, (b"\0\0\x01\x01",))
    actual["datetime"] = Forged(dt.datetime, (b"\0\0\x01\xff\xff\xff\xff\xff\xff\xff",))
    actual["time"] = Forged(dt.time, (b"\x01\xff\xff\xff\xff\xff",))
    for class_ in (fractions.Fraction, uuid.UUID, collections.Counter):
        put = pickle.dumps((None, {"__add__": dict, "extra": 1}), 5)[11:-1]
        actual[f"class {class_.__name__}"] = b"\x80\x05" + pickle.dumps(class_, 5)[11:-1] + put + b"b."
    return {name: given if isinstance(given, bytes) else pickle.dumps(given, 5) for name, given in actual.items()}


def test_forged_state_is_refused_and_leaves_the_process_whole() -> None:
    """In a process of its own: it may crash."""
    program = (
        "import pickle, sys; from krishiv_py.kernels.aggregates.user import StateTypes\n"
        "import fractions, numpy as np\n"
        "types = StateTypes([np.ndarray])\n"
        "for name, blob in pickle.load(sys.stdin.buffer).items():\n"
        "    try: found = types.loads(blob)\n"
        "    except Exception: continue\n"
        "    print(name, repr(found), flush=True)\n"
        "    del found\n"
        "assert fractions.Fraction(1, 2) + 1 == fractions.Fraction(3, 2) and not hasattr(fractions.Fraction, 'extra')\n"
        "print('whole')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(forgeries()), capture_output=True, check=False)
    assert (ran.returncode, ran.stdout.decode().split("\n"), ran.stderr.decode()) == (0, ["whole", ""], "")


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
