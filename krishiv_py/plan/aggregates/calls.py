"""Aggregate calls: ``sum(col("amount")).alias("total")`` (SEMANTICS §5.6)."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

import attrs
import pyarrow as pa

from krishiv_py.errors import ExpressionError, PlanError, message, shown
from krishiv_py.plan.aggregates.combined import combined
from krishiv_py.plan.checks import expression
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.expressions.expr import Aggregate, Col, Expr, Func, col
from krishiv_py.plan.expressions.facts import aggregate_in, name_of
from krishiv_py.plan.expressions.list_methods import Pair, Single
from krishiv_py.plan.expressions.trees import listed, render
from krishiv_py.plan.names import encodable
from krishiv_py.types import normal_type

AggName: TypeAlias = Literal[
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "stddev",
    "variance",
    "stddev_pop",
    "var_pop",
    "first",
    "last",
    "count_distinct",
    "approx_count_distinct",
    "collect_list",
    "collect_set",
    "percentile",
    "approx_percentile",
    "histogram",
    "mode",
    "max_by",
    "min_by",
    "top_k",
    "bottom_k",
    "bool_and",
    "bool_or",
    "udaf",
]
A = TypeVar("A")


@runtime_checkable
class Aggregator(Protocol[A]):
    """A user-defined aggregate.

    ``merge`` must be associative and agree with ``add``: the library combines accumulators in any grouping.
    Accumulators are stored in the checkpoint, in a form that runs no code when it is read. They may contain plain Python
    values (numbers, text, bytes, lists, tuples, dicts, sets), dates and times, ``Decimal``, ``Fraction``, ``UUID``, the types
    of ``collections`` and NumPy arrays. They may be of the class that `create` returns. List any other class in a tuple
    ``state_types`` on the aggregator. An aggregator may also define
    ``partial(values: pyarrow.Array, groups: numpy.ndarray, n_groups: int) -> list[A]`` as a vectorised form of ``create``
    followed by ``add`` for every value.
    """

    def create(self) -> A:
        """A fresh accumulator."""
        ...

    def add(self, accumulator: A, value: Any) -> A:
        """The `accumulator` with one non-null `value` added; it may be changed in place."""
        ...

    def merge(self, left: A, right: A) -> A:
        """Combine two accumulators; in some windows `left` holds earlier arrivals than `right`.

        This is so in tumbling windows, count windows and windows that fire by rows. Hopping windows combine slices of time.
        Look-back and distinct-set windows combine rows in order of time. A row may join two sessions, and a longest duration
        may divide them differently. In these windows arrivals on both sides may alternate, so the aggregate should not
        depend on the order of arrival.
        """
        ...

    def finish(self, accumulator: A) -> Any:
        """The result of an `accumulator`, None for null."""
        ...


@attrs.frozen(eq=False, repr=False)
class AggCall(Aggregate):
    """One aggregate over the rows of a window. It is an expression, so others are computed from it: ``sum("a") / count()``.

    Attributes
    ----------
    func : str
        Which aggregate.
    arg : Expr
        What is aggregated; ``col("*")`` counts rows.
    name : str or None
        The alias, if one was given.
    where : Expr or None
        Only rows for which this is true are aggregated.
    percentage : float
        For ``percentile`` and ``approx_percentile``: the rank, 0 to 1.
    percentages : tuple of float
        For ``approx_percentile``: several ranks, which make a list of the result.
    relative_error : float
        For ``approx_percentile``: how far a result may be from the value of its rank.
    bounds : tuple of float
        For ``histogram``: where bins begin.
    precision : int
        For ``approx_count_distinct``: 2**precision registers (standard error about 1.04 / sqrt(2**precision)).
    k : int
        For ``top_k`` and ``bottom_k``: how many rows.
    then : tuple of {"smallest", "largest"}
        For those two: what comes first of rows that are equal so far, by the second field, the third and so on.
    udaf : Aggregator or None
        For user-defined aggregates, with `result_type`.
    over_us : int or None
        How far back it looks in a look-back window that looks further, µs.
    """

    func: AggName
    arg: Expr
    name: str | None = None
    where: Expr | None = None
    percentage: float = 0.5
    percentages: tuple[float, ...] = ()
    relative_error: float = 0.01
    bounds: tuple[float, ...] = ()
    precision: int = 12
    k: int = 1
    then: tuple[Literal["smallest", "largest"], ...] = ()
    udaf: Aggregator[Any] | None = None
    result_type: pa.DataType | None = None
    over_us: int | None = None

    def __attrs_post_init__(self) -> None:
        for part in (self.arg, self.where):
            if part is not None and (inner := aggregate_in(part)) is not None:
                raise ExpressionError(
                    message(
                        f"{self.func} of an aggregate",
                        render(inner),
                        "one window has one value of it, and nothing to aggregate",
                        'aggregate the results of a stage: .agg(sum("x").alias("n")).tumbling_window("1 h").agg(max("n"))',
                    )
                )

    def alias(self, name: str) -> AggCall:
        """Call the output column `name`."""
        if not isinstance(name, str) or not name or not encodable(name):
            raise PlanError(message("an alias is a non-empty text", shown(name), "the column has no name", 'write .alias("n")'))
        return attrs.evolve(self, name=name)

    @overload
    def filter(self, condition: Expr | str) -> AggCall: ...
    @overload
    def filter(self, condition: Single | Pair) -> Func: ...
    def filter(self, condition: Expr | str | Single | Pair) -> AggCall | Func:
        """Aggregate only rows for which `condition` is true; a function of elements leaves elements of its list out instead."""
        if callable(condition):
            return super().filter(condition)
        parsed = expression(condition, f"{self.func}().filter")
        return attrs.evolve(self, where=parsed if self.where is None else self.where & parsed)

    def over(self, size: Duration) -> AggCall:
        """Look back only so far, in a look-back window that looks further: several ranges in one pass (SEMANTICS §11.4).

        Parameters
        ----------
        size : int or timedelta or str
            How far; ``int`` is milliseconds. With ``two_sided``, it looks so far ahead, too.

        Raises
        ------
        DurationError
            For negative, float or boolean sizes and unreadable text.
        """
        return attrs.evolve(self, over_us=to_us(size, "size", allow_zero=True))

    @property
    def output_name(self) -> str:
        """The column name: the alias, ``count`` for ``count(*)``, else ``func_argument``; then the range of its own."""
        if self.name is not None:
            return self.name
        own = "" if self.over_us is None else "_" + show_us(self.over_us).replace(" ", "_")
        if self.counts_rows:
            return f"count{own}"
        label = getattr(type(self.udaf), "__name__", "udaf").lower() if self.func == "udaf" else self.func
        return f"{label}_{name_of(self.arg)}{own}"

    @property
    def counts_rows(self) -> bool:
        """Whether this is ``count(*)``."""
        return self.func == "count" and isinstance(self.arg, Col) and self.arg.name == "*"

    def parts(self) -> tuple[Any, ...]:
        name = type(self.udaf).__name__ if self.func == "udaf" else self.func
        where = () if self.where is None else (" FILTER (WHERE ", self.where, ")")
        over = () if self.over_us is None else (f" OVER {show_us(self.over_us)}",)
        return f"{name}(", *listed([self.arg, *self._settings()]), ")", *where, *over

    def __str__(self) -> str:
        return f"{render(self)} AS {self.output_name}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def _settings(self) -> list[str]:
        """What tells two calls of one aggregate apart, besides argument and filter."""
        if self.func == "percentile":
            return [repr(self.percentage)]
        if self.func == "approx_percentile":
            ranks = list(self.percentages) if self.percentages else self.percentage
            return [repr(ranks), f"relative_error={self.relative_error}"]
        if self.func == "histogram":
            return [repr(list(self.bounds))]
        if self.func == "approx_count_distinct":
            return [f"precision={self.precision}"]
        if self.func in ("top_k", "bottom_k"):
            return [f"k={self.k}", *([f"then by {', '.join(self.then)}"] if self.then else [])]
        return [f"user-defined, {self.result_type}"] if self.func == "udaf" else []


def call_of(func: AggName, arg: Expr | str, **options: Any) -> AggCall:
    """A checked call of `func` over a column."""
    parsed = col(arg) if isinstance(arg, str) else arg
    if not isinstance(parsed, Expr):
        own = f"; for Python's own {func} write: import builtins, builtins.{func}(...)" if func in ("sum", "min", "max") else ""
        hint = f'write {func}("x") or {func}(col("x")){own}'
        raise ExpressionError(message(f"{func} takes a column", shown(arg), "nothing to aggregate", hint))
    if isinstance(parsed, Col) and parsed.name == "*" and func != "count":
        raise ExpressionError(message(f'{func} cannot take col("*")', "*", "rows as such have no value", "name a column"))
    return AggCall(func, parsed, **options)


def count(arg: Expr | str = "*") -> AggCall:
    """Number of rows (`arg` is ``col("*")``, the default) or of non-null values of `arg`. Type ``int64``, never null."""
    return call_of("count", arg)


def sum(arg: Expr | str) -> AggCall:  # noqa: A001  # SQL's own name
    """Sum of the non-null values of `arg`: ``int64`` for integers (overflow is an error), ``float64``, or decimal(38).

    A sum of floats is exact, rounded once (§5.6): it depends neither on the order of the rows nor on how they were batched.
    """
    return call_of("sum", arg)


def min(arg: Expr | str) -> AggCall:  # noqa: A001  # SQL's own name
    """Smallest non-null value of `arg`, in its type; NaN counts as the largest number, as in Spark."""
    return call_of("min", arg)


def max(arg: Expr | str) -> AggCall:  # noqa: A001  # SQL's own name
    """Largest non-null value of `arg`, in its type; NaN counts as the largest number, as in Spark."""
    return call_of("max", arg)


def avg(arg: Expr | str) -> AggCall:
    """Arithmetic mean of the non-null values of `arg`, ``float64``: their exact sum, rounded, divided by their number."""
    return call_of("avg", arg)


def stddev(arg: Expr | str) -> AggCall:
    """Sample standard deviation (n - 1) of `arg`, ``float64``: the root of :func:`variance`; null for fewer than two values."""
    return call_of("stddev", arg)


def variance(arg: Expr | str) -> AggCall:
    """Sample variance (n - 1) of `arg`, ``float64``; null for fewer than two values.

    Exact up to its last roundings, also far from zero, and independent of order and batches (§5.6).
    """
    return call_of("variance", arg)


def first(arg: Expr | str) -> AggCall:
    """The non-null value of `arg` with the smallest event time; the earlier arrival wins a tie."""
    return call_of("first", arg)


def last(arg: Expr | str) -> AggCall:
    """The non-null value of `arg` with the largest event time; the later arrival wins a tie."""
    return call_of("last", arg)


def count_distinct(arg: Expr | str, *more: Expr | str) -> AggCall:
    """Exact number of distinct non-null values of `arg`, ``int64``; with `more`, of combinations without a null."""
    return call_of("count_distinct", combined((arg, *more), "count_distinct") if more else arg)


def approx_count_distinct(arg: Expr | str, precision: int = 12) -> AggCall:
    """HyperLogLog estimate of the number of distinct non-null values, ``int64``.

    Parameters
    ----------
    arg : Expr or str
        The column.
    precision : int
        4 to 16; the relative standard error is about ``1.04 / sqrt(2**precision)`` (1.6 % at 12).
    """
    if isinstance(precision, bool) or not isinstance(precision, int) or not 4 <= precision <= 16:
        raise PlanError(
            message(
                "`precision` is out of range",
                shown(precision),
                "no sketch has that many registers",
                "use a whole number from 4 to 16",
            )
        )
    return call_of("approx_count_distinct", arg, precision=precision)


def collect_list(arg: Expr | str) -> AggCall:
    """All non-null values of `arg`, in event-time order (ties: arrival), as a list; empty if there are none."""
    return call_of("collect_list", arg)


def collect_set(arg: Expr | str) -> AggCall:
    """The distinct non-null values of `arg`, sorted, as a list; empty if there are none."""
    return call_of("collect_set", arg)


def percentile(arg: Expr | str, percentage: float = 0.5) -> AggCall:
    """Exact percentile with linear interpolation, ``float64``.

    Parameters
    ----------
    arg : Expr or str
        A numeric column.
    percentage : float
        The rank, from 0 (minimum) to 1 (maximum).
    """
    if isinstance(percentage, bool) or not isinstance(percentage, (int, float)) or not 0 <= percentage <= 1:
        raise PlanError(message("`percentage` is out of range", shown(percentage), "no value has that rank", "use 0 to 1"))
    return call_of("percentile", arg, percentage=float(percentage))


def udaf(aggregator: Aggregator[Any], arg: Expr | str, result_type: pa.DataType) -> AggCall:
    """A user-defined aggregate, see :class:`Aggregator`; the result has `result_type`.

    Parameters
    ----------
    aggregator : Aggregator
        An instance with ``create``, ``add``, ``merge`` and ``finish``; it is pickled to the workers.
    arg : Expr or str
        The column; nulls are skipped.
    result_type : pyarrow.DataType
        Type of what ``finish`` returns.
    """
    if not isinstance(aggregator, Aggregator) or isinstance(aggregator, type):
        raise PlanError(
            message(
                "not an Aggregator",
                shown(aggregator),
                "it cannot be run",
                "pass an instance with create, add, merge and finish",
            )
        )
    if not isinstance(result_type, pa.DataType):
        raise PlanError(
            message(
                "`result_type` is no Arrow type",
                shown(result_type),
                "results have no column type",
                "pass for instance pyarrow.float64()",
            )
        )
    return call_of("udaf", arg, udaf=aggregator, result_type=normal_type(result_type))
