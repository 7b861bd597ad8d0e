"""Calls of a user's functions over columns, in the form that each takes."""

from __future__ import annotations

import importlib
from typing import Any, Literal, NoReturn

import pyarrow as pa

from krishiv_py.errors import RAISED, KrishivError, MissingExtraError, OperatorError, failure_text
from krishiv_py.plan.expressions.udfs import ColumnFunction, Form
from krishiv_py.types import type_text


class FunctionError(OperatorError):
    """A function of a user failed for rows that may go to the late output.

    Attributes
    ----------
    name : str
        The name of the function.
    reason : str
        What it said.
    """

    def __init__(self, name: str, reason: str, failed: OperatorError) -> None:
        super().__init__(str(failed))
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[type[OperatorError], tuple[str]]:
        return OperatorError, (str(self),)


def failed(name: str, problem: BaseException, error: OperatorError, on_error: Literal["fail", "side_output"]) -> NoReturn:
    """Raise what a function failed with, so that its rows go aside where they may."""
    if on_error == "fail":
        raise error from problem
    raise FunctionError(name, failure_text(problem, placed=False), error) from problem


def result_of(call: ColumnFunction, columns: list[pa.Array], rows: int) -> pa.Array:
    """Return the values of a function; it is not called for no rows.

    Raises
    ------
    OperatorError
        When it fails, or returns other than a value of its type for each row.
    MissingExtraError
        Where the library of its form is not installed.
    """
    if not rows:
        return pa.array([], call.type)
    given = [_in_form(column, call.over) for column in columns]
    hint = f"fix {call.name}"
    try:
        result = _as_arrow(call.function(*given))
    except KrishivError:
        raise
    except RAISED as problem:  # user code: whatever it raises is reported with what it was given
        error = OperatorError(f"{call.name}(...) failed", got=f"{rows} rows", then=failure_text(problem), hint=hint)
        failed(call.name, problem, error, call.on_error)
    if len(result) != rows:
        got = f"{len(result)} values for {rows} rows"
        raise OperatorError(f"{call.name}(...) returns other than a value for each row", got=got, hint=hint)
    try:
        return result if result.type == call.type else result.cast(call.type)
    except pa.ArrowException as problem:
        what = f"{call.name}(...) returns other values than {type_text(call.type)}"
        error = OperatorError(what, got=str(result.type), hint="declare their type in @udf(...)")
        failed(call.name, problem, error, call.on_error)


def _in_form(column: pa.Array, form: Form) -> Any:
    if form == "arrow":
        return column
    try:
        if form == "numpy":
            return column.to_numpy(zero_copy_only=False)
        return column.to_pandas() if form == "pandas" else importlib.import_module("polars").from_arrow(column)
    except ImportError as problem:
        raise MissingExtraError(f"{form} is not installed", got=form, hint=f"pip install {form}") from problem


def _as_arrow(given: Any) -> pa.Array:
    """Return what a function returned as one array."""
    if hasattr(given, "to_arrow"):  # of Polars
        given = given.to_arrow()
    if isinstance(given, pa.ChunkedArray):
        return given.combine_chunks() if given.num_chunks != 1 else given.chunk(0)
    if isinstance(given, pa.Array):
        return given
    if isinstance(given, (pa.Scalar, str, bytes)) or not hasattr(given, "__len__"):
        raise TypeError(f"it returned a {type(given).__name__}, and no column")
    array = pa.array(given, from_pandas=True) if type(given).__module__.startswith("pandas") else pa.array(given)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
