"""A retraction log as a sequence of :class:`Emit` and :class:`Retract`, Ripple's view of it (SEMANTICS §5.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.connectors.tables import changes as tables
from krishiv_py.errors import OperatorError, PlanError, shown
from krishiv_py.plan.checks import is_collection
from krishiv_py.plan.windows.window import Window, window_of

T = TypeVar("T")
Row: TypeAlias = dict[str, Any]


@attrs.frozen
class Emit(Generic[T]):
    """A new or corrected result.

    Attributes
    ----------
    row
        The result, without ``op`` and pane columns.
    """

    row: T

    @property
    def window(self) -> Window | None:
        """The window of the result; None for results without ``window_start`` and ``window_end``."""
        return window_of(self.row)


@attrs.frozen
class Retract(Generic[T]):
    """A result that was emitted before and is no longer valid.

    Attributes
    ----------
    row
        The retracted result, exactly as it was emitted.
    """

    row: T

    @property
    def window(self) -> Window | None:
        """The window of the result; None for results without ``window_start`` and ``window_end``."""
        return window_of(self.row)


Change: TypeAlias = "Emit[Row] | Retract[Row]"
_OPS = ("+I", "-U", "+U", "-D")
_ABOUT = ("op", "pane_timing", "pane_index")


def changes(results: pa.Table) -> list[Change]:
    """Read a table of results as changes, in order.

    Parameters
    ----------
    results : pyarrow.Table
        Results of a query; ``+I`` and ``+U`` (and all rows, where there is no ``op``) emit, ``-U`` and ``-D`` retract.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"n": [1, 1, 2], "op": ["+I", "-U", "+U"]})
    >>> changes(table)
    [Emit(row={'n': 1}), Retract(row={'n': 1}), Emit(row={'n': 2})]
    >>> changes(pa.table({"window_start": [0], "window_end": [60_000], "n": [3]}))[0].window
    Window(start=0, end=60000)
    """
    if not isinstance(results, pa.Table):
        raise PlanError("changes() reads a table of results", got=shown(results), hint="pass query.results()")
    rows = results.select([n for n in results.schema.names if n not in _ABOUT]).to_pylist()
    ops = results["op"].to_pylist() if "op" in results.schema.names else ["+I"] * len(rows)
    return [Retract(row) if _op(op).startswith("-") else Emit(row) for op, row in zip(ops, rows, strict=True)]


def _op(op: object) -> str:
    if not isinstance(op, str) or op not in _OPS:
        then = "a row of it cannot be read as a change"
        raise PlanError("the column `op` has no such mark", got=shown(op), then=then, hint=f"marks are {', '.join(_OPS)}")
    return op


def fold(log: Iterable[Change]) -> list[Row]:
    """Return the results that are valid after a sequence of changes, in order of emission.

    Parameters
    ----------
    log : iterable of Emit or Retract
        The changes; different windows may come in any order.

    Raises
    ------
    PlanError
        For anything but changes.
    OperatorError
        For a retraction without a matching result.

    Examples
    --------
    >>> fold([Emit({"n": 1}), Retract({"n": 1}), Emit({"n": 2})])
    [{'n': 2}]
    """
    standing: dict[str, list[Row]] = {}
    if not is_collection(log):
        raise PlanError("fold() reads a sequence of changes", got=shown(log), hint="pass changes(results)")
    for change in log:
        if not isinstance(change, (Emit, Retract)):
            raise PlanError("not an Emit or Retract", got=shown(change), hint="pass changes(results)")
        same = standing.setdefault(repr(change.row), [])  # rows may hold lists, which cannot be keys; repr distinguishes floats
        if isinstance(change, Emit):
            same.append(change.row)
        elif same:
            same.pop()
            if not same:
                del standing[repr(change.row)]
        else:
            raise OperatorError("retraction without a matching result", got=change.row, hint="fold it from its beginning")
    return [row for same in standing.values() for row in same]


def table_view(results: pa.Table, by: Sequence[str] | None = None) -> pa.Table:
    """Return the last value of every key and window, as Kafka's table of a windowed aggregation shows it.

    Parameters
    ----------
    results : pyarrow.Table
        Results of a query in order of emission: final ones, updates, or retractions, whose withdrawn results are left out.
    by : sequence of str, optional
        The columns that name a row of the table; the keys and bounds of the windows unless given. Look-back results of one
        key and time have the same: name a column of their row, too.

    Returns
    -------
    pyarrow.Table
        One row each, in order of its last emission, without ``op`` and pane columns.

    Raises
    ------
    PlanError
        For a value that is not a table of results, and for columns that it does not have.
    OperatorError
        For two results of a change log that `by` does not tell apart: one would be lost.

    Examples
    --------
    >>> import pyarrow as pa
    >>> updates = pa.table({"k": ["a", "b", "a"], "window_start": [0] * 3, "window_end": [9] * 3, "count": [1, 1, 2]})
    >>> table_view(updates).to_pylist()[-1]
    {'k': 'a', 'window_start': 0, 'window_end': 9, 'count': 2}
    """
    if not isinstance(results, pa.Table):
        hint = "pass query.results()"
        raise PlanError("table_view() reads a table of results", got=shown(results), hint=hint)
    names = results.schema.names
    if by is not None and (isinstance(by, str) or not isinstance(by, Sequence) or not all(isinstance(n, str) for n in by)):
        hint = f"pass a list of columns: {', '.join(names)}"
        raise PlanError("`by` is a list of columns", got=shown(by), hint=hint)
    wanted = names[: names.index("window_end") + 1] if by is None and "window_end" in names else list(by or ())
    unknown = [n for n in wanted if n not in names]
    if not wanted or unknown:
        got = ", ".join(map(repr, unknown)) or "no column window_end"
        hint = f"name columns of the results: {', '.join(names)}"
        raise PlanError("which columns name a row of the table?", got=got, hint=hint)
    there, _ = tables.last_changes(tables.one_form(results, wanted), wanted, "table_view()")
    return results.take(there).select([name for name in names if name not in _ABOUT])
