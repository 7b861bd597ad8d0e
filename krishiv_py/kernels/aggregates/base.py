"""Aggregates as kernels know them: partials of groups, of prefixes and of ranges of rows.

Errors of a user-defined aggregate, with the group in which they happened.

An aggregate knows groups by number only. Who calls it knows more: how groups are numbered elsewhere, the key of a group, its
window. Each adds what it knows while the error passes; nothing is kept, or computed, as long as nothing fails.

Prefixes are for triggers that fire row by row (SEMANTICS §5.2). Rows are ordered by group. Counts, sums and extremes have
cumulative NumPy forms, in their own files. Any other aggregate is merged by doubling: in pass ``j`` every prefix of
``2**j`` rows is joined with the one before it, so ``log2`` of the longest group passes do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import Spread
from krishiv_py.arrays.ranges import Ranges, expand, portions, running
from krishiv_py.arrays.types import Ints, Mask, NumPy, as_arrow, doubles, run_begins, whole
from krishiv_py.errors import OperatorError, shown
from krishiv_py.failures.redaction import shown_setting
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.checks import overridden_since


@attrs.frozen(eq=False)
class Rows:
    """The input of one aggregate: values (None for ``count(*)``), event times, and the group of every row."""

    values: pa.Array | None
    times: Ints
    ids: Ints
    n: int

    def valid(self) -> tuple[pa.Array, Ints, Mask | None]:
        """Return the values without nulls, as :func:`valid_rows` does."""
        assert self.values is not None
        return valid_rows(self.values, self.ids)


def valid_rows(values: pa.Array, ids: Ints) -> tuple[pa.Array, Ints, Mask | None]:
    """Values without nulls, with their groups, and the mask that chose them (None: all)."""
    if values.null_count == 0:
        return values, ids, None
    mask = values.is_valid().to_numpy(zero_copy_only=False)
    return values.drop_null(), ids[mask], mask


def numbers(values: pa.Array) -> NumPy:
    """Return a null-free numeric array as NumPy."""
    plain: NumPy = values.to_numpy(zero_copy_only=False)
    return plain


def with_nulls(values: NumPy, present: Mask, type_: pa.DataType) -> pa.Array:
    """Return an Arrow array of `type_`, null where not present."""
    if not present.all():
        return pa.array(values, type_, mask=~present)
    return as_arrow(values) if type_ == pa.int64() and values.dtype == np.int64 else pa.array(values, type_)


def lists(values: pa.Array, ids: Ints, n: int) -> pa.Array:
    """Return a list column from values already ordered by group."""
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(ids, minlength=n), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def flatten(column: pa.Array, ids: Ints) -> tuple[pa.Array, Ints]:
    """Return the values of a list column and the group of each."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return column.flatten(), np.repeat(ids, lengths)


class GroupError(OperatorError):
    """A failure of an aggregate in the group of this number, which is not named yet."""

    def __init__(self, what: str, got: str = "", problem: str = "", hint: str = "", group: int | None = None) -> None:
        super().__init__(what, got=got, then=problem, hint=hint)
        self.parts = what, got, problem, hint
        self.group = group

    def restored(self, where: str) -> OperatorError:
        """Return the error for people; `where` may be empty."""
        what, got, problem, hint = self.parts
        return OperatorError(f"{what} {where}" if where else what, got=got, then=problem, hint=hint)


@contextmanager
def regrouped(groups: Ints | Callable[[int], int]) -> Iterator[None]:
    """Let a group that fails in the body have the number that `groups` has for it."""
    try:
        yield
    except GroupError as problem:
        if problem.group is not None:
            try:
                problem.group = int(groups(problem.group) if callable(groups) else groups[problem.group])
            except LookupError:
                problem.group = None
        raise


@attrs.frozen(eq=False)
class FailingPlace:
    """Lets the error for a group that fails in the body of a ``with`` say `where` that is.

    `known` says whether that can be known here; if not, the error goes on to who knows it.
    """

    where: Callable[[int], str]
    known: Callable[[], bool] = lambda: True

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Name the place."""
        if not isinstance(problem, GroupError) or not self.known():
            return
        try:
            place = "" if problem.group is None else self.where(problem.group)
        except LookupError:  # a group without a row that names it; the failure is raised all the same
            place = ""
        raise problem.restored(place) from problem.__cause__


def blame_too_long(aggregate: str, problem: pa.ArrowInvalid) -> None:
    """Say which aggregate it is that makes a value of more than Arrow can count the bytes of, if that is the problem.

    Raises
    ------
    OperatorError
        When it is.
    """
    if any(words in str(problem) for words in ("offset overflow", "overflowed binary array")):
        hint = "collect a part of it, such as an id, use shorter windows, or more keys"
        raise OperatorError(f"{aggregate!r} of one window is too long", got="more than 2 GiB", hint=hint) from problem


def first_of(ids: Ints) -> Callable[[int], int]:
    """Return the first row of a group, of rows with these groups."""
    return lambda group: int(np.flatnonzero(ids == group)[0])


def shown_key(names: Iterable[str], values: Iterable[object]) -> str:
    """Return a key for people: ``key user='a', n=1``; nothing for the one key of a stream without keys."""
    parts = [f"{name}={shown_setting(name, shown(value))}" for name, value in zip(names, values, strict=True)]
    return f"key {', '.join(parts)}" if parts else ""


Merge: TypeAlias = Callable[[list[pa.Array], Ints, int], list[pa.Array]]
"""The function by which an aggregate merges partials by group."""


def group_starts(ids: Ints) -> Ints:
    """Return where every row's group begins."""
    first = run_begins(ids)
    begins = np.flatnonzero(first)
    return np.repeat(begins, np.diff(np.append(begins, len(ids))))


def cumulate(values: NumPy, starts: Ints) -> NumPy:
    """Running sums of whole numbers, each group from its start."""
    total: NumPy = np.cumsum(values)
    cumulated: NumPy = total - (total[starts] - values[starts])
    return cumulated


def valid(column: pa.Array) -> Mask:
    """Return which values are not null."""
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def with_presence(values: NumPy, valid: Mask, starts: Ints, type_: pa.DataType) -> pa.Array:
    """Running values, null until a group has had a valid one."""
    seen = cumulate(valid.astype(np.int64), starts) > 0
    return pa.array(values, type_, mask=None if seen.all() else ~seen)


def doubling(merge: Merge, partials: list[pa.Array], starts: Ints) -> list[pa.Array]:
    """Any aggregate: of every row, the merged partials of its group up to and with that row."""
    place = np.arange(len(starts)) - starts
    step = 1
    while step <= int(place.max(initial=0)):
        later = np.flatnonzero(place >= step)
        pairs = np.column_stack([later - step, later]).ravel()
        with regrouped(later):
            joined = merge([p.take(pa.array(pairs)) for p in partials], np.repeat(np.arange(len(later)), 2), len(later))
        source = np.arange(len(starts))
        source[later] = len(starts) + np.arange(len(later))
        partials = [pa.concat_arrays([p, j]).take(pa.array(source)) for p, j in zip(partials, joined, strict=True)]
        step *= 2
    return partials


_PAIRS: Final = 2_000_000
SHORT: Final = 64
"""Ranges of so many rows are gone through row by row."""
Create: TypeAlias = Callable[[Rows], list[pa.Array]]
"""The function by which an aggregate makes partials of rows by group."""


@attrs.frozen(eq=False)
class OrderedInput:
    """The input of an aggregate, laid out by key, time and arrival.

    Attributes
    ----------
    values : pyarrow.Array
        A value a row.
    valid : ndarray of bool or None
        Which values are not null; None: all.
    """

    values: pa.Array
    valid: Mask | None

    @classmethod
    def of(cls, values: pa.Array) -> OrderedInput:
        """Return the input with these values as its column."""
        return cls(values, values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None)

    def filled(self, zero: Any, type_: pa.DataType) -> NumPy:
        """Return the values as NumPy, `zero` in place of nulls."""
        cast = doubles(self.values) if type_ == pa.float64() else pc.cast(self.values, type_, safe=False)
        return numbers(cast if self.valid is None else cast.fill_null(pa.scalar(zero, type_)))

    def spread(self, r: Ranges, holes: Ints | None) -> tuple[pa.Array, Spread]:
        """Return the values without nulls, and the ranges over them."""
        if self.valid is None:
            return self.values, Spread(r.low, r.high, holes)
        seen = running(self.valid.astype(np.int64))
        hole = None if holes is None else np.where(self.valid[holes], seen[holes], -1)
        return self.values.drop_null(), Spread(seen[r.low], seen[r.high], hole)


def counts(column: OrderedInput | None, r: Ranges) -> Ints:
    """Rows, or non-null values, of every range."""
    if column is None or column.valid is None:
        return r.high - r.low
    total = running(column.valid.astype(np.int64))
    return total[r.high] - total[r.low]


def any_ranges(
    create: Create, merge: Merge, types: list[pa.DataType], column: OrderedInput | None, times: Ints, r: Ranges
) -> list[pa.Array]:
    """Return the partial columns of any aggregate, of these `types`, for every range; one that fails is named by its range."""
    values = None if column is None else column.values
    long = np.flatnonzero(r.high - r.low > SHORT)
    if not len(long):
        return _expanded(create, types, values, times, r)
    short = np.flatnonzero(r.high - r.low <= SHORT)
    with regrouped(short):
        parts = [_expanded(create, types, values, times, Ranges(r.low[short], r.high[short], r.block))]
    with regrouped(long):
        parts.append(_doubled(create, merge, values, times, r.low[long], r.high[long]))
    order = pa.array(np.argsort(np.concatenate([short, long])))
    return [pa.concat_arrays([whole(x) for x in pair]).take(order) for pair in zip(*parts, strict=True)]


def _expanded(create: Create, types: list[pa.DataType], values: pa.Array | None, times: Ints, r: Ranges) -> list[pa.Array]:
    """Every row once for every range it is in, a bounded number at a time."""
    parts: list[list[pa.Array]] = []
    for start, stop in portions(r.high - r.low, _PAIRS):
        rows, ids = expand(r.low[start:stop], r.high[start:stop])
        taken = None if values is None else values.take(pa.array(rows))
        with regrouped(np.arange(start, stop)):
            parts.append(create(Rows(taken, times[rows], ids, stop - start)))
    if not parts:
        return [pa.array([], t) for t in types]
    return [pa.concat_arrays([whole(p[i]) for p in parts]) for i in range(len(types))]


def _doubled(create: Create, merge: Merge, values: pa.Array | None, times: Ints, low: Ints, high: Ints) -> list[pa.Array]:
    """Long ranges: rows are merged to stretches of 2, 4, 8, …, of which a range takes at most one each.

    Which it takes follows from its length alone, so what rounds, rounds the same wherever a range lies.
    """
    base, end = int(low.min()), int(high.max())
    n, q = end - base, len(low)
    picked = None if values is None else values.slice(base, n)

    def holding(row: int) -> int:
        return int(np.flatnonzero((low <= base + row) & (base + row < high))[0])

    with regrouped(holding):
        table = [whole(p) for p in create(Rows(picked, times[base:end], np.arange(n, dtype=np.int64), n))]
    low_rows, lengths = low - base, high - low
    doubled = [pa.nulls(q, p.type) for p in table]
    some = np.zeros(q, np.bool_)
    width = 1
    while width <= int(lengths.max()):
        mine = np.flatnonzero(lengths & width)
        taken = [p.take(pa.array(low_rows[mine])) for p in table]
        later = np.flatnonzero(some[mine])
        both = [pa.concat_arrays([f, t]) for f, t in zip(doubled, taken, strict=True)]
        with regrouped(mine[later]):
            joined = _in_pairs(merge, both, mine[later], q + later)
        source = np.arange(q)
        source[mine] = q + np.arange(len(mine))
        source[mine[later]] = q + len(mine) + np.arange(len(later))
        doubled = [pa.concat_arrays([b, j]).take(pa.array(source)) for b, j in zip(both, joined, strict=True)]
        some[mine], low_rows = True, low_rows + (lengths & width)
        left = np.arange(len(table[0]) - width)
        if len(left):
            with regrouped(holding):
                table = _in_pairs(merge, table, left, left + width)
        width *= 2
    return doubled


def _in_pairs(merge: Merge, partials: list[pa.Array], left: Ints, right: Ints) -> list[pa.Array]:
    """Lines `left` and `right` of partials merged."""
    order = pa.array(np.column_stack([left, right]).ravel())
    merged = merge([p.take(order) for p in partials], np.repeat(np.arange(len(left)), 2), len(left))
    return [whole(p) for p in merged]


class ListLimit(Protocol):
    """Refuses too many values listed."""

    def check(self, what: str, lengths: Ints) -> None:
        """Refuse lists of these lengths, one a range, that `what` makes."""


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
    joins_columns : bool
        Whether equal kernels over several columns are computed as one over all of them, each column with groups of its own.
        Such a kernel reads no times.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let a subclass of another kernel that computes other partials inherit none of its shortcuts.

        They give in another way what the methods that it overrides gave before. A class to which they apply says so:
        ``ranges = Average.ranges``, or ``joins_columns = True``.
        """
        super().__init_subclass__(**kwargs)
        if "joins_columns" not in vars(cls):
            cls.joins_columns = False
        for name, apart in _SHORTCUTS.items():
            if overridden_since(cls, name) - _SHORTCUTS.keys() - apart:
                setattr(cls, name, vars(AggKernel)[name])
                if name == "prefixes" and "exact_prefixes" not in vars(cls):
                    cls.exact_prefixes = False

    in_order: ClassVar[bool] = False
    exact_prefixes: ClassVar[bool] = False
    keeps: ClassVar[str] = ""
    joins_columns: ClassVar[bool] = False

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

    def taking_back(self) -> AggKernel | None:
        """Return the kernel of the same results that takes rows back by :meth:`negated`; None where rows have to be kept."""
        return None

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        """Return the partials that take these back where they are merged."""
        raise NotImplementedError

    def noted(self, func: str) -> str:
        """Return what a checkpoint notes of it, called as `func`: partials of another kind could not be read."""
        return func

    @property
    def holds_values(self) -> bool:
        """Return whether partials grow with the rows and results do not; then :meth:`prefix_results` must be there."""
        return False

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        """Of every row, the merged partials of its group up to and with that row; one that fails is named by its row.

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
        """Return the partial columns for every range of rows; one that fails is named by its range.

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


_RESULTS: Final = frozenset({"finish", "result_type", "noted"})
_SHORTCUTS: Final[dict[str, frozenset[str]]] = {
    "prefixes": _RESULTS | {"create"},
    "ranges": _RESULTS,
    **dict.fromkeys(("prefix_results", "range_results", "holds_values"), frozenset({"noted"})),
}
"""Methods that give in another way what others give, with those that they do not depend on."""


@attrs.frozen
class OfType(AggKernel):
    """An aggregate that gives one of its values.

    Attributes
    ----------
    type : pyarrow.DataType
        The type of the values.
    """

    type: pa.DataType

    @property
    def result_type(self) -> pa.DataType:
        return self.type


@attrs.frozen
class OneValue(OfType):
    """An aggregate whose partial is its result so far, in the type of the values; null without any."""

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [self.type]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self.merge([rows.values], rows.ids, rows.n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]


Make: TypeAlias = "Callable[[Any, pa.DataType], AggKernel]"
M = TypeVar("M", bound=Make)
KERNELS: Final[dict[type[AggCall], Make]] = {}
"""Functions that make the kernel of a call over values of a type, by the class of the call."""


def computes(*calls: type[AggCall]) -> Callable[[M], M]:
    """Return what enters a function as the one that makes the kernels of these `calls`."""

    def enter(make: M) -> M:
        KERNELS.update(dict.fromkeys(calls, make))
        return make

    return enter
