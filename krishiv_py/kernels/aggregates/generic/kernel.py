"""Define what an aggregate is to the kernels, in one class: partials, order, prefixes, ranges and what a checkpoint
notes of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates.base import Rows
from krishiv_py.kernels.aggregates.generic.prefixes import doubling, group_starts
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput, any_ranges
from krishiv_py.plan.aggregates.calls import AggCall


class ListLimit(Protocol):
    """Refuses too many values listed."""

    def check(self, what: str, lengths: Ints) -> None:
        """Refuse lists of these lengths, one a range, that `what` makes."""
        ...


class AggKernel(ABC):
    """One aggregate, vectorised over groups: columns of partials that are made of rows, merged and finished.

    A new aggregate is a call, with its function, in ``plan/aggregates``, and a subclass of this one in the file of the same
    name here, with a function under :func:`computes`. Types and ``create``, ``merge`` and ``finish`` are enough. All else has
    an answer for any aggregate; override it where this one does better.

    Attributes
    ----------
    in_order : bool
        Whether partials must be merged in order of arrival. Then rows are not combined where that would mix it.
    exact_prefixes : bool
        Whether :meth:`prefixes` costs the same for every row, and its results are to the last bit those of whole groups.
    keeps : str
        What state holds of a group where that grows with its rows; ``explain()`` shows it.
    """

    __slots__ = ()
    in_order: ClassVar[bool] = False
    exact_prefixes: ClassVar[bool] = False
    keeps: ClassVar[str] = ""

    @property
    @abstractmethod
    def partial_types(self) -> list[pa.DataType]:
        """Types of the partial columns. They belong to the format of checkpoints."""

    @property
    @abstractmethod
    def result_type(self) -> pa.DataType:
        """Type of the finished column."""

    @abstractmethod
    def create(self, rows: Rows) -> list[pa.Array]:
        """Partials of rows."""

    @abstractmethod
    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        """Partials of partials, which are folded in row order: earlier rows first."""

    @abstractmethod
    def finish(self, partials: list[pa.Array]) -> pa.Array:
        """Results of partials."""

    def noted(self, func: str) -> str:
        """Return what a checkpoint notes of it, called as `func`: partials of another kind could not be read."""
        return func

    @property
    def holds_values(self) -> bool:
        """Return whether partials grow with the rows and results do not; then :meth:`prefix_results` must be there."""
        return False

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        """Of every row, the merged partials of its group up to and with that row; one that fails is told by its row.

        Parameters
        ----------
        partials : list of pyarrow.Array
            Partial columns, rows of a group next to each other.
        ids : ndarray of int64
            The group of every row, ascending.
        """
        return doubling(self.merge, partials, group_starts(ids))

    def prefix_results(self, partials: list[pa.Array], ids: Ints, wanted: Ints) -> pa.Array:
        """Of the rows `wanted`, what the prefixes that end there come to, finished, without partials of prefixes."""
        raise NotImplementedError

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        """The partial columns for every range of rows; one that fails is told by its range.

        Parameters
        ----------
        column : Column or None
            The input, None for ``count(*)``; rows by key, time and arrival.
        times : ndarray of int64
            Event times in µs.
        r : Ranges
            Non-empty ranges, `low` ascending.
        """
        return any_ranges(self.create, self.merge, self.partial_types, column, times, r)

    def range_results(
        self, column: OrderedInput | None, r: Ranges, holes: Ints | None, limit: ListLimit | None
    ) -> pa.Array | None:
        """Results for every range, where that needs no partials; None if it does.

        Parameters
        ----------
        column : Column or None
            The input, None for ``count(*)``; rows by key, time and arrival.
        r : Ranges
            Non-empty ranges whose bounds ascend.
        holes : ndarray of int64 or None
            A row within each range that does not count.
        limit : ListLimit or None
            To be asked before lists are made.
        """
        return None


@attrs.frozen
class OneValue(AggKernel):
    """An aggregate whose partial is its result so far, in the type of the values; null without any.

    Attributes
    ----------
    type : pyarrow.DataType
        The type of the values.
    """

    type: pa.DataType

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [self.type]

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self.merge([rows.values], rows.ids, rows.n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]


Make: TypeAlias = "Callable[[Any, pa.DataType], AggKernel]"
M = TypeVar("M", bound=Make)
KERNELS: Final[dict[type[AggCall], Make]] = {}
"""What makes the kernel of a call over values of a type, by the class of the call."""


def computes(*calls: type[AggCall]) -> Callable[[M], M]:
    """Return what enters a function as the one that makes the kernels of these `calls`."""

    def enter(make: M) -> M:
        KERNELS.update(dict.fromkeys(calls, make))
        return make

    return enter
