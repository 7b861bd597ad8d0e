"""Functions of users over columns: ``@udf("double")`` makes one that is called in expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_function, a_text, one_of
from krishiv_py.plan.expressions.constants import named_type
from krishiv_py.plan.expressions.expr import Expr, col, wrap
from krishiv_py.plan.expressions.trees import listed
from krishiv_py.types import normal_type, type_text

Form: TypeAlias = Literal["arrow", "numpy", "pandas", "polars"]
FORMS: Final = ("arrow", "numpy", "pandas", "polars")


@attrs.frozen
class ColumnFunction:
    """A function of columns, called with columns; made by :func:`udf`.

    Attributes
    ----------
    function : callable
        The function as it was written, for tests of it.
    type : pyarrow.DataType
        The type of its results.
    over : {"arrow", "numpy", "pandas", "polars"}
        The form in which it gets columns.
    on_error : {"fail", "side_output"}
        What becomes of rows for which it raises.
    name : str
        The name in plans, and under which such rows are counted.
    """

    function: Callable[..., Any] = attrs.field(repr=False)
    type: pa.DataType
    over: Form
    on_error: Literal["fail", "side_output"]
    name: str

    def __call__(self, *columns: Expr | str | float | None) -> Expr:
        """Return the expression of a call over columns: names, expressions or constants."""
        if not columns:
            raise PlanError(f"{self.name}() got no column", got="0 columns", hint=f'write {self.name}("amount")')
        return Called(self, tuple(col(c) if isinstance(c, str) else wrap(c) for c in columns))


@attrs.frozen(eq=False, repr=False)
class Called(Expr):
    """A call of a function of a user."""

    called: ColumnFunction
    args: tuple[Expr, ...]

    def _children(self) -> tuple[Expr, ...]:
        return self.args

    def _parts(self) -> tuple[object, ...]:
        return (f"{self.called.name}(", *listed(self.args), ")")


def udf(
    result_type: pa.DataType | str,
    *,
    over: Form = "arrow",
    on_error: Literal["fail", "side_output"] = "fail",
    name: str | None = None,
) -> Callable[[Callable[..., Any]], ColumnFunction]:
    """Make a function of whole columns usable in expressions: in select, filter, keys and the arguments of aggregates.

    Parameters
    ----------
    result_type : pyarrow.DataType or str
        The type of its results; a text is a type of SQL such as ``"double"`` or ``"array<string>"``.
    over : {"arrow", "numpy", "pandas", "polars"}
        The form in which it gets each column: a ``pyarrow.Array``, a NumPy array, or a Series. It returns one of these forms,
        or a list, with a value for each row. Nulls come as this form has them.
    on_error : {"fail", "side_output"}
        Stop the query when it raises (default), or pass the rows for which it does to the late handler, with the text of the
        exception as the reason, counted under its name. The batch is then cut in halves until these rows are found. In the
        arguments and filters of aggregates it is called twice for that: once to find such rows, once for the value.
    name : str, optional
        Its name in plans; by default that of the function.

    Raises
    ------
    PlanError
        For a value that is not a type, another form, and where no function is decorated.

    Notes
    -----
    Rows are cut into batches in any way, and a batch may be computed again: a result must depend on its own row alone, and be
    the same each time. It is pickled to the workers.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> from krishiv_py import col
    >>> from krishiv_py.testing import Driver, stream_of
    >>> @udf("double")
    ... def with_tax(amount, rate):
    ...     return pc.multiply(amount, pc.add(rate, 1.0))
    >>> taxed = stream_of("amount double, rate double").select("amount", total=with_tax("amount", col("rate")))
    >>> Driver(taxed).send([{"amount": 10.0, "rate": 0.5}]).results.to_pylist()
    [{'amount': 10.0, 'total': 15.0}]
    """
    if callable(result_type) and not isinstance(result_type, (str, pa.DataType)):
        raise PlanError("@udf needs the type of the results", got="a function", hint='write @udf("double") above it')
    if not isinstance(result_type, (str, pa.DataType)):
        raise PlanError("`result_type` is not a type", got=shown(result_type), hint='write @udf("double")')
    type_ = named_type(result_type) if isinstance(result_type, str) else normal_type(result_type)
    one_of(over, "over", FORMS)
    one_of(on_error, "on_error", ("fail", "side_output"))
    if name is not None:
        a_text(name, "name", "pass a text, or leave it out")

    def decorated(function: Callable[..., Any]) -> ColumnFunction:
        if not callable(function) or isinstance(function, ColumnFunction):
            raise PlanError("udf decorates a function", got=shown(function), hint=f'write @udf("{type_text(type_)}") above it')
        a_function(function, "udf decorates a function", "")
        title = name or str(getattr(function, "__name__", type(function).__name__))
        return ColumnFunction(function, type_, over, on_error, title)

    return decorated
