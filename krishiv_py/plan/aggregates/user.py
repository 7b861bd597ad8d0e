"""User-defined aggregates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.aggregates.calls import AggCall, aggregate, column_of
from krishiv_py.plan.checks import a_function, one_of, overridden_since, plain_methods
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.types import normal_type

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
    followed by ``add`` for every value. A subclass that overrides more than ``merge`` and ``finish`` does not inherit it, as it
    would give what ``add`` was before; where it still fits the class says ``partial = Base.partial``.
    """

    def create(self) -> A:
        """Return a fresh accumulator."""

    def add(self, accumulator: A, value: Any) -> A:
        """Return the `accumulator` with one non-null `value` added; it may be changed in place."""

    def merge(self, left: A, right: A) -> A:
        """Combine two accumulators; in some windows `left` holds earlier arrivals than `right`.

        This is so in tumbling windows, count windows and windows that fire by rows. Hopping windows combine slices of time.
        Look-back and distinct-set windows combine rows in order of time. A row may join two sessions, and a longest duration
        may divide them differently. In these windows arrivals on both sides may alternate, so the aggregate should not
        depend on the order of arrival.
        """

    def finish(self, accumulator: A) -> Any:
        """Return the result of an `accumulator`, None for null."""


def partial_of(aggregator: object) -> Callable[..., Any] | None:
    """Return the vectorised form of ``create`` and ``add``; None where there is none, or one of what they were in a base."""
    outdated = overridden_since(type(aggregator), "partial") - {"merge", "finish"}
    return None if outdated else getattr(aggregator, "partial", None)


class _VectorAggregator(Aggregator[A], Protocol[A]):
    """Describes an aggregator with its optional method, too."""

    def partial(self, values: pa.Array, groups: Any, n_groups: int) -> list[A]:
        """See :class:`Aggregator`."""


@attrs.frozen(eq=False, repr=False)
class Udaf(AggCall):
    """A user-defined aggregate."""

    udaf: Aggregator[Any] | None = None
    result_type: pa.DataType | None = None
    on_error: Literal["fail", "side_output"] = "fail"

    @property
    def _title(self) -> str:
        return type(self.udaf).__name__

    def _settings(self) -> list[str]:
        return [f"user-defined, {self.result_type}"]


@aggregate()
def udaf(
    aggregator: Aggregator[Any], arg: Expr | str, result_type: pa.DataType, *, on_error: Literal["fail", "side_output"] = "fail"
) -> AggCall:
    """Return a user-defined aggregate, see :class:`Aggregator`; the result has `result_type`.

    Parameters
    ----------
    aggregator : Aggregator
        An instance with ``create``, ``add``, ``merge`` and ``finish``; it is pickled to the workers.
    arg : Expr or str
        The column; nulls are skipped.
    result_type : pyarrow.DataType
        Type of what ``finish`` returns.
    on_error : {"fail", "side_output"}
        Stop the query when the aggregator raises (default), or pass the rows that it cannot take to the late handler, with the
        text of the exception as the reason, counted under the name of its class. Such a row is one for which ``create`` and
        ``add`` (or ``partial``, where it has one) raise with its value alone; so the same rows go there whatever the batches
        and windows are. To find them each value is added once more, to an accumulator of its own. What ``merge`` and
        ``finish`` raise, and ``add`` with other values before, always stops the query.

    Raises
    ------
    PlanError
        For a value that is not an aggregator or an Arrow type, and for another `on_error`.
    """
    one_of(on_error, "on_error", ("fail", "side_output"))
    methods = (getattr(aggregator, name, None) for name in ("create", "add", "merge", "finish"))
    if isinstance(aggregator, type) or not all(map(callable, methods)):
        raise PlanError("not an Aggregator", got=shown(aggregator), hint="pass an instance with create, add, merge and finish")
    plain_methods(aggregator, _VectorAggregator)
    if not isinstance(result_type, pa.DataType):
        hint = "pass for instance pyarrow.float64()"
        raise PlanError("`result_type` is not an Arrow type", got=shown(result_type), hint=hint)
    return Udaf(column_of(arg, "udaf"), udaf=aggregator, result_type=normal_type(result_type), on_error=on_error)


@attrs.frozen
class Reduce:
    """Combines values by a function of two of them. An accumulator is a list of at most one value."""

    function: Callable[[Any, Any], Any]

    def __attrs_post_init__(self) -> None:
        hint = 'write .reduce("amount", lambda a, b: max(a, b))'
        a_function(self.function, "reduce takes a function of two values", hint)

    def create(self) -> list[Any]:
        """No value yet."""
        return []

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        """One more value."""
        return [self.function(accumulator[0], value)] if accumulator else [value]

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Merge the values of both."""
        return self.add(left, right[0]) if right else left

    def finish(self, accumulator: list[Any]) -> Any:
        """Return the one value that is left; None without any."""
        return accumulator[0] if accumulator else None
