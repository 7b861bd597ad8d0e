"""top_k, bottom_k, max_by and min_by: aggregates that rank the rows of a group by a value (SEMANTICS §5.6)."""

from __future__ import annotations

from typing import Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.types import Ints
from krishiv_py.errors import ExpressionError
from krishiv_py.kernels.aggregates.collections import TimedLists
from krishiv_py.kernels.aggregates.extremes import ranks
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, computes
from krishiv_py.plan.aggregates.ranked import BottomK, MaxBy, MinBy, TopK
from krishiv_py.types import type_text


def _places(by: pa.Array, side: Literal["min", "max"]) -> Ints:
    """Whole numbers that ascend from the first rank on; nulls come last."""
    rank, ordered = ranks(normal_key(by.drop_null()))
    place = np.full(len(by), len(ordered), np.int64)
    some = slice(None) if by.null_count == 0 else by.is_valid().to_numpy(zero_copy_only=False)
    place[some] = rank if side == "min" else len(ordered) - 1 - rank
    return place


@attrs.frozen
class Ranked(TimedLists):
    """The first `k` rows of a group, as structs whose first field ranks them; ties by event time, then arrival."""

    side: Literal["min", "max"]
    k: int
    then: tuple[Literal["min", "max"], ...] = ()

    def noted(self, func: str) -> str:
        """A partial of fewer rows could not be read as one of more."""
        title = func if self.k == 1 else f"{func} of {self.k}"
        return f"{title}, then by {', '.join(self.then)}" if self.then else title

    def picked(self, times: Ints, values: pa.Array, ids: Ints) -> Ints:
        """See TimedLists."""
        fields = [_places(values.field(at), side) for at, side in enumerate((self.side, *self.then))]
        order = np.lexsort((times, *reversed(fields), ids))
        groups = ids[order]
        heads = np.flatnonzero(np.diff(groups, prepend=-1))
        rank = np.arange(len(groups)) - np.repeat(heads, np.diff(heads, append=len(groups)))
        return order[rank < self.k]


@attrs.frozen
class ValueBy(Ranked):
    """The second field of the first row whose first field is not null."""

    @property
    def result_type(self) -> pa.DataType:
        return self.type.field(1).type

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        lengths = partials[1].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        heads = np.cumsum(lengths) - lengths
        by, values = partials[1].flatten().take(pa.array(heads, mask=lengths == 0)).flatten()
        return pc.if_else(by.is_valid(), values, pa.scalar(None, values.type))


@computes(TopK, BottomK, MaxBy, MinBy)
def _ranked(call: TopK | BottomK | MaxBy | MinBy, type_: pa.DataType) -> AggKernel:
    then = call.then if isinstance(call, (TopK, BottomK)) else ()
    for at in range(1 + len(then)):
        by = type_.field(at).type
        if pa.types.is_nested(by) or pa.types.is_null(by):
            raise ExpressionError(
                f"{call.func} ranks rows by values that can be compared",
                got=f"`{'then' if at else 'by'}` of type {type_text(by)}",
                hint="rank by a number, a text, a time or a field of the value",
            )
    side: Literal["min", "max"] = "max" if isinstance(call, (MaxBy, TopK)) else "min"
    if isinstance(call, (TopK, BottomK)):
        return Ranked(type_, side, call.k, tuple("min" if first == "smallest" else "max" for first in then))
    if pa.types.is_null(type_.field(1).type):
        raise ExpressionError(f"{call.func} takes values of some type", got="null only", hint='cast it: col("x").cast("int")')
    return ValueBy(type_, side, 1)
