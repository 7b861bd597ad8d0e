"""A retraction log as a sequence of :class:`Emit` and :class:`Retract`, Ripple's view of it (SEMANTICS §5.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeAlias, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.errors import OperatorError, PlanError, message, shown

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


@attrs.frozen
class Retract(Generic[T]):
    """A result that was emitted before and holds no more.

    Attributes
    ----------
    row
        The withdrawn result, exactly as it was emitted.
    """

    row: T


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
    >>> table = pa.table({"n": [1, 1, 2], "op": ["+I", "-U", "+U"]})
    >>> changes(table)
    [Emit(row={'n': 1}), Retract(row={'n': 1}), Emit(row={'n': 2})]
    """
    if not isinstance(results, pa.Table):
        raise PlanError(message("changes() reads a table of results", shown(results), "it is no log", "pass query.results()"))
    rows = results.select([n for n in results.schema.names if n not in _ABOUT]).to_pylist()
    ops = results["op"].to_pylist() if "op" in results.schema.names else ["+I"] * len(rows)
    return [Retract(row) if _op(op).startswith("-") else Emit(row) for op, row in zip(ops, rows, strict=True)]


def _op(op: object) -> str:
    if not isinstance(op, str) or op not in _OPS:
        raise PlanError(
            message(
                "the column `op` has no such mark",
                shown(op),
                "a row of it cannot be read as a change",
                f"marks are {', '.join(_OPS)}",
            )
        )
    return op


def fold(log: Iterable[Change]) -> list[Row]:
    """What stands after a sequence of changes, in order of emission.

    Parameters
    ----------
    log : iterable of Emit or Retract
        The changes; any order of different windows will do.

    Raises
    ------
    PlanError
        For anything but changes.
    OperatorError
        When something is withdrawn that does not stand.

    Examples
    --------
    >>> fold([Emit({"n": 1}), Retract({"n": 1}), Emit({"n": 2})])
    [{'n': 2}]
    """
    standing: dict[str, list[Row]] = {}
    if isinstance(log, str) or not isinstance(log, Iterable):
        raise PlanError(message("fold() reads a sequence of changes", shown(log), "nothing can stand", "pass changes(results)"))
    for change in log:
        if not isinstance(change, (Emit, Retract)):
            raise PlanError(message("not an Emit or Retract", shown(change), "it changes nothing", "pass changes(results)"))
        same = standing.setdefault(repr(change.row), [])  # rows may hold lists, which cannot be keys; repr tells floats apart
        if isinstance(change, Emit):
            same.append(change.row)
        elif same:
            same.pop()
            if not same:
                del standing[repr(change.row)]
        else:
            raise OperatorError(
                message(
                    "a result was withdrawn that does not stand",
                    change.row,
                    "the log cannot be folded",
                    "fold it from its beginning",
                )
            )
    return [row for same in standing.values() for row in same]
