"""Functions of elements as arguments: computed over all elements at once, with the columns of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.errors import ExpressionError
from krishiv_py.functions.computing.values import Value, repeated
from krishiv_py.plan.expressions.expr import Col, Expr, Lambda, LambdaVar
from krishiv_py.plan.expressions.trees import walk

Rows: TypeAlias = "pa.RecordBatch | pa.Table"
ValueOf: TypeAlias = Callable[[Expr, Rows], Value]
_COLUMN: Final = "__krishiv_element_"


def variable(expr: LambdaVar, batch: Rows) -> pa.Array:
    """Return the values of a parameter, for the elements that are looked at."""
    index = batch.schema.get_field_index(f"{_COLUMN}{expr.name}")
    if index < 0:
        raise ExpressionError(
            f"{expr.name!r} is the parameter of a function of elements",
            got="used outside of it",
            hint="use it in the function only",
        )
    column = batch.column(index)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


@attrs.frozen(eq=False)
class ElementFunction:
    """A function of elements as kernels take it: over which rows, and by what it is computed."""

    function: Lambda
    batch: Rows
    value_of: ValueOf

    @property
    def text(self) -> str:
        """Return how it is written."""
        return repr(self.function)

    def given(self, rows: Ints, *values: pa.Array) -> pa.Array:
        """Return what it gives for `values`, elements of these rows, with the columns of the rows that it reads."""
        params = [f"{_COLUMN}{p}" for p in self.function.params]
        read = {
            n.name if isinstance(n, Col) else f"{_COLUMN}{n.name}"
            for n in walk(self.function.body)
            if isinstance(n, Col | LambdaVar)
        }
        outer = [n for n in self.batch.schema.names if n in read and n not in params]
        positions = pa.array(rows)
        columns = [pa.chunked_array(c) if isinstance(c, pa.ChunkedArray) else c for c in map(self.batch.column, outer)]
        elements = pa.Table.from_arrays(
            [*(c.take(positions) for c in columns), *values[: len(params)]], names=[*outer, *params]
        )
        result = self.value_of(self.function.body, elements)
        return repeated(result, len(rows)) if isinstance(result, pa.Scalar) else result
