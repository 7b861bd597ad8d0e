"""Generated queries: rows with a column of every type, and one plan with every aggregate over every column."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import attrs
import pyarrow as pa

import krishiv_py as kv
from krishiv_py import SlidingWindows, TimeIntervalWindowOptions, col, lit
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import ExpressionError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.testing import stream_of
from tests.engines.arrow_types import ACCEPTED, is_key
from tests.engines.longest import Longest

BASE_S: Final = 1_700_000_000
SHARE: Final = 190
"""How many aggregates a query has: what it costs grows with them, and every round of queries deals all of them out."""
TIMES: Final = (pa.int64(), *(pa.timestamp(u, z) for u in ("s", "ms", "us", "ns") for z in (None, "Asia/Tokyo")))
WINDOWS: Final[dict[str, Callable[[KeyedStream], Any]]] = {
    "tumbling": lambda k: k.tumbling_window("1 minute"),
    "hopping": lambda k: k.allowed_lateness("10 s").emit("final").hopping_window("1 minute", "25 s"),
    "session": lambda k: k.session_window("15 s"),
    "session, rule window": lambda k: k.late_rule("window").session_window("15 s"),
    "capped session": lambda k: k.session_window("15 s", max_duration="40 s"),
    "count": lambda k: k.count_window(3, 2),
    "look-back": lambda k: k.lookback_window("30 s"),
    "distinct sets": lambda k: k.windowed_by(SlidingWindows.of("30 s").grace("5 s")),
    "panes": lambda k: k.emit("final").time_interval_window(TimeIntervalWindowOptions("30 s", creation_period="20 s")),
}
AGGREGATES: Final[dict[str, Callable[[Expr], AggCall]]] = {
    "count": kv.count,
    "sum": kv.sum,
    "min": kv.min,
    "max": kv.max,
    "avg": kv.avg,
    "stddev": kv.stddev,
    "variance": kv.variance,
    "stddev_pop": kv.stddev_pop,
    "var_pop": kv.var_pop,
    "first": kv.first,
    "last": kv.last,
    "count_distinct": kv.count_distinct,
    "approx_count_distinct": kv.approx_count_distinct,
    "collect_list": kv.collect_list,
    "collect_set": kv.collect_set,
    "percentile": lambda e: kv.percentile(e, 0.3),
    "approx_percentile": lambda e: kv.approx_percentile(e, [0.3, 1.0], 0.05),
    "histogram": lambda e: kv.histogram(e, [-1, 0.5, 10]),
    "mode": kv.mode,
    "max_by": lambda e: kv.max_by(e, e),
    "min_by": lambda e: kv.min_by(e, e),
    "top_k": lambda e: kv.top_k(2, e.alias("by"), e.alias("of")),
    "udaf": lambda e: kv.udaf(Longest(), e, pa.string()),
}
EXPRESSIONS: Final[dict[str, Callable[[Expr], Expr]]] = {
    "is null": lambda e: e.is_null(),
    "as text": lambda e: e.try_cast("string"),
    "as double": lambda e: e.cast("double"),
    "equal": lambda e: e == lit(None),
    "less": lambda e: e < e,
    "negated": lambda e: -e,
    "half": lambda e: e / 2,
    "if": lambda e: kv.func("if_else", e.is_null(), lit(1), lit(2)),
    "coalesce": lambda e: kv.func("coalesce", e, e),
    "lower": lambda e: kv.func("lower", e),
    "length": lambda e: kv.func("length", e),
    "struct": lambda e: kv.func("named_struct", lit("v"), e),
}
OF_NUMBERS: Final = frozenset({"half", "negated", "as double"})
"""Expressions that stop a query at a value of another type: a text that is not a number."""
WHERE: Final[tuple[Expr | None, ...]] = (None, None, col("flag"), col("n") > 1, ~col("flag") | (col("n") == 0))


def name_of(type_: pa.DataType) -> str:
    """The column of a type: as odd as a name may be."""
    return f"{type_} `.'é"


def is_number(type_: pa.DataType) -> bool:
    """Whether values of the type can be reckoned with."""
    plain = ACCEPTED[type_][0]
    return bool(pa.types.is_integer(plain) or pa.types.is_floating(plain) or pa.types.is_decimal(plain))


def key_name(type_: pa.DataType) -> str:
    """The key column of a type."""
    return f"key {type_}"


KEY_TYPES: Final = tuple(t for t in ACCEPTED if is_key(t))


@attrs.frozen
class Case:
    """One combination that is compared: the column of the result it shows in."""

    column: str
    what: str


@attrs.frozen(eq=False)
class Workload:
    """One query over generated batches."""

    seed: int
    window: str
    time: pa.DataType
    schema: pa.Schema
    batches: tuple[pa.RecordBatch, ...]
    aggs: tuple[AggCall, ...]
    cases: tuple[Case, ...]

    def plan(self, stream: Stream, handler: kv.LateEventHandler) -> ResultStream:
        """The query over a stream of the schema."""
        keyed = stream.watermark("at", "20 s").key_by(*(key_name(t) for t in KEY_TYPES)).with_late_event_handler(handler)
        plan: ResultStream = WINDOWS[self.window](keyed).agg(*self.aggs)
        return plan


def workload(seed: int, window: str, time: pa.DataType) -> Workload:
    """The query of a seed."""
    rng = random.Random(f"{seed} {window} {time}")
    fields = [("at", time), ("flag", pa.bool_()), ("n", pa.int32())]
    fields += [(key_name(t), t) for t in KEY_TYPES] + [(name_of(t), t) for t in ACCEPTED]
    schema = pa.schema(fields)
    aggs, cases = _aggs(seed, rng, list(WINDOWS).index(window))
    cases += [Case(key_name(t), f"key {t}") for t in KEY_TYPES]
    batches = tuple(_batch(rng, schema, i) for i in range(5))
    return Workload(seed, window, time, schema, batches, tuple(aggs), tuple(cases))


@cache
def combinations() -> tuple[tuple[tuple[str, AggCall], ...], int]:
    """Every aggregate over every type, and over expressions of it; and how many were refused, as they must be, at the call."""
    taken: list[tuple[str, AggCall]] = []
    refused = 0
    for type_ in ACCEPTED:
        windowed = stream_of(pa.schema([("at", pa.int64()), (name_of(type_), type_)])).watermark("at", 0).tumbling_window(1)
        value = col(name_of(type_))
        calls = {f"{name}({type_})": make(value) for name, make in AGGREGATES.items()}
        for name, of in EXPRESSIONS.items():
            if is_number(type_) or name not in OF_NUMBERS:
                calls[f"first({name} of {type_})"] = kv.first(of(value))
        for what, call in calls.items():
            try:
                windowed.agg(call)
                taken.append((what, call))
            except ExpressionError as problem:
                assert "Hint:" in str(problem), what
                refused += 1
    return tuple(taken), refused


def _aggs(seed: int, rng: random.Random, part: int) -> tuple[list[AggCall], list[Case]]:
    """A share of all combinations: neighbours take what follows, so that a round over the windows has each at least twice."""
    aggs: list[AggCall] = []
    cases: list[Case] = []
    dealt = list(combinations()[0])
    random.Random(seed).shuffle(dealt)
    for number, (what, call) in enumerate((dealt * 2)[part * SHARE % len(dealt) :][:SHARE]):
        where = rng.choice(WHERE)
        aggs.append((call if where is None else call.filter(where)).alias(f"r{number}"))
        cases.append(Case(f"r{number}", what if where is None else f"{what} where {where!r}"))
    return aggs, cases


def _batch(rng: random.Random, schema: pa.Schema, number: int) -> pa.RecordBatch:
    """Rows of one micro-batch: mostly later than those before it, some late, some without a time, all of few keys."""
    n = 0 if number == 3 else rng.randrange(6, 16)
    seconds = [None if rng.random() < 0.05 else number * 45 + rng.randrange(-60 if number else 0, 45) for _ in range(n)]
    if number == 1:
        seconds[0] = None  # a late row, whatever the window
    groups = [rng.randrange(4) for _ in range(n)]
    columns: list[pa.Array] = []
    for field in schema:
        if field.name == "at":
            columns.append(_times(seconds, field.type))
        elif field.name == "n":
            columns.append(pa.array([rng.choice([0, 1, 2, None]) for _ in range(n)], field.type))
        elif field.name == "flag":
            columns.append(pa.array([rng.choice([True, False, None]) for _ in range(n)], field.type))
        else:
            pool = ACCEPTED[field.type][1]
            picks = groups if field.name.startswith("key ") else [rng.randrange(4) for _ in range(n)]
            columns.append(_column([pool[p] for p in picks], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _times(seconds: list[int | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_int64(type_):
        return pa.array([None if s is None else (BASE_S + s) * 1_000 for s in seconds], type_)
    zero = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc if type_.tz else None)
    return pa.array([None if s is None else zero + dt.timedelta(seconds=BASE_S + s) for s in seconds], type_)


def _column(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_run_end_encoded(type_):
        ends = pa.array(range(1, len(values) + 1), pa.int32())
        return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, type_.value_type))
    return pa.array(values, type_)
