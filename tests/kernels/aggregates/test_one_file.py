"""An aggregate that is a call of one line and a kernel of four methods runs in every kind of window, with every trigger."""

from __future__ import annotations

import functools
import operator
from typing import Any, ClassVar

import attrs
import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import ExpressionError, SlidingWindows, Trigger, bit_and, bit_or, bit_xor, col
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates import AggKernel, Rows, kernel_for
from krishiv_py.kernels.aggregates.base import KERNELS, numbers
from krishiv_py.plan.aggregates.calls import DEFINITIONS, AggCall, Takes
from krishiv_py.testing import Driver, stream_of

TIMES = [0, 3, 3, 7, 20, 21, 26, 40, 41, 44]
VALUES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


@attrs.frozen
class Xor(AggKernel):
    """Bitwise exclusive or: nothing is overridden."""

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64()]

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self.merge([rows.values], rows.ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        actual = np.zeros(n, np.int64)
        np.bitwise_xor.at(actual, ids, numbers(partials[0]))
        return [pa.array(actual)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]


@attrs.frozen(eq=False, repr=False)
class XorCall(AggCall):
    """A call of it."""

    func: ClassVar[str] = "xor"
    takes: ClassVar[Takes] = "numbers"


def plain(rows: Any) -> int:
    """The same, value by value."""
    return functools.reduce(operator.xor, rows, 0)


@pytest.fixture
def xor(monkeypatch: pytest.MonkeyPatch) -> AggCall:
    monkeypatch.setitem(KERNELS, XorCall, lambda call, type_: Xor())
    return XorCall(col("n"), "x")


def sent(stream: Any) -> list[dict[str, Any]]:
    """The results over the rows in three batches."""
    driver = Driver(stream)
    actual: list[dict[str, Any]] = []
    for some in (slice(0, 3), slice(3, 6), slice(6, None)):
        actual += driver.send(pa.table({"at": TIMES[some], "n": VALUES[some]})).results.to_pylist()
    actual += driver.close().results.to_pylist()
    return actual


def within(start: int, end: int) -> int:
    return plain(n for t, n in zip(TIMES, VALUES, strict=True) if start <= t < end)


KEYED = "at bigint, n bigint"


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session", "look-back", "distinct"])
def test_it_runs_in_every_kind_of_window(kind: str, xor: AggCall) -> None:
    keyed = stream_of(KEYED).watermark("at", 100)
    windows: dict[str, Any] = {
        "tumbling": lambda: keyed.tumbling_window(10),
        "hopping": lambda: keyed.hopping_window(10, 5),
        "session": lambda: keyed.session_window(9),
        "look-back": lambda: keyed.lookback_window(9),
        "distinct": lambda: keyed.windowed_by(SlidingWindows.of(9).grace(100)),
    }
    actual = sent(windows[kind]().agg(xor))
    assert actual
    closed = kind in ("look-back", "distinct")
    assert [r["x"] for r in actual] == [within(r["window_start"], r["window_end"] + closed) for r in actual]


@pytest.mark.parametrize("kind", ["tumbling", "session", "count"])
@pytest.mark.parametrize("n", [1, 2])
def test_it_runs_with_triggers_that_count(kind: str, n: int, xor: AggCall) -> None:
    keyed = stream_of(KEYED).watermark("at", 100)
    windows: dict[str, Any] = {
        "tumbling": lambda: keyed.tumbling_window(100),
        "session": lambda: keyed.session_window(99),
        "count": lambda: keyed.count_window(100),
    }
    actual = sent(windows[kind]().trigger(Trigger.on_count(n)).emit("updates").agg(xor))
    early = [plain(VALUES[:i]) for i in range(n, len(VALUES) + 1, n)]
    assert [r["x"] for r in actual] == [*early, plain(VALUES)][: len(actual)]
    assert len(actual) >= len(early)


def calls_there_are(of: type[AggCall] = AggCall) -> list[type[AggCall]]:
    return [call for sub in of.__subclasses__() for call in (sub, *calls_there_are(sub)) if call.__module__ != __name__]


@pytest.mark.parametrize("call", calls_there_are(), ids=lambda call: call.__name__)
def test_every_call_has_a_kernel_and_a_function_of_its_name(call: type[AggCall]) -> None:
    assert call.func in DEFINITIONS
    struct = pa.struct({"by": pa.int64(), "value": pa.int64()})
    type_ = {"conditions": pa.bool_(), "numbers": pa.int64(), "integers": pa.int8()}.get(call._takes, struct)
    made: Any = call(col("x"))
    if call.func == "udaf":
        made = attrs.evolve(made, udaf=object(), result_type=pa.int64())
    assert isinstance(kernel_for(made, pa.int64() if call._takes == "comparable" else type_), AggKernel)


def test_a_name_in_sql_is_of_one_aggregate() -> None:
    names = [name for definition in DEFINITIONS.values() for name in definition.sql]
    assert len(names) == len(set(names))
    assert all(definition.function.__doc__ for definition in DEFINITIONS.values())


@pytest.mark.parametrize("type_", ["tinyint", "smallint", "int", "bigint"])
def test_bits_have_the_type_of_the_numbers(type_: str) -> None:
    stream = stream_of(f"n {type_}, k string, at bigint").watermark("at", 0).key_by("k").tumbling_window(10)
    driver = Driver(stream.agg(every=bit_and("n"), any=bit_or("n"), odd=bit_xor("n")))
    rows = [
        {"k": k, "n": n, "at": 1} for k, n in [("a", -128), ("a", 127), ("b", None), ("a", None), ("c", 6), ("c", 5), ("c", 7)]
    ]
    driver.send(rows[:4])
    driver.send(rows[4:])
    actual = driver.close().results
    named = {row["k"]: (row["every"], row["any"], row["odd"]) for row in actual.to_pylist()}
    assert named == {"a": (0, -1, -1), "b": (None, None, None), "c": (4, 7, 4)}
    assert {actual.schema.field(name).type for name in ("every", "any", "odd")} == {driver._spec.row_schema.field("n").type}


@pytest.mark.parametrize("type_", ["double", "decimal(5, 2)", "string", "boolean", "date"])
def test_other_values_have_no_bits(type_: str) -> None:
    windows = stream_of(f"n {type_}, at bigint").watermark("at", 0).tumbling_window(10)
    with pytest.raises(ExpressionError, match="bit_or takes whole numbers"):
        windows.agg(bit_or("n"))
