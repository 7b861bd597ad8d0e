"""Define what a look-back result says of the rows met: aggregates, lists or pairs (SEMANTICS §3.4)."""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import Ranges, expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.splitting import portions
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.aggregates.base import lists
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.windows.ranged.listed import Listing
from krishiv_py.kernels.windows.ranged.ordered import Ordered
from krishiv_py.kernels.windows.ranged.range_values import range_values
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.facts import columns_of
from krishiv_py.plan.windows.lookback import LookBackWindow

Op: TypeAlias = "str | npt.NDArray[np.str_]"
_PAIRS: Final = 2_000_000


class Product(Protocol):
    """Results of anchor rows, in ascending order of window end; ``additive`` if a new row never changes an old result."""

    additive: bool

    def __call__(self, o: Ordered, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """Result rows for the rows at `anchors`, whose windows are `r`; `fresh` tells new rows from known ones."""
        ...


class Aggregates:
    """One aggregated row per anchor."""

    additive = False

    def __init__(self, layout: Layout, window: LookBackWindow) -> None:
        self.layout, self.window = layout, window
        self.emitter = Emitter(layout)

    def __call__(self, o: Ordered, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """See :class:`Product`."""
        listing = Listing(self.layout, o.rows, anchors, o.ids[anchors])
        times = o.times[anchors]
        bounds = times - self.window.size_us, times + self.window.after_us
        values = range_values(self.layout, o.rows, r, anchors if self.window.exclude_self else None, listing, bounds, anchors)
        order = stable_order(times)
        picked, at = pa.array(order), pa.array(anchors[order])
        keys, own = ([pick(o.rows[n], at) for n in names] for names in (self.layout.key_names, self.layout.own_names))
        times = times[order]
        return self.emitter.finished(
            keys,
            times - self.window.size_us,
            times + self.window.after_us,
            [*(pick(v, picked) for v in values), *own],
            op if isinstance(op, str) else op[order],
            pane,
            None,
        )


class Matches:
    """The row itself, and the list of the other rows in its window."""

    additive = False

    def __init__(self, layout: Layout, window: LookBackWindow) -> None:
        self.layout, self.window = layout, window
        self.schema = layout.result_schema

    def __call__(self, o: Ordered, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """See :class:`Product`."""
        kind = self.layout.spec.time_kind
        times = o.times[anchors]
        order = stable_order(times)
        anchors, times = anchors[order], times[order]
        low, high = r.low[order], r.high[order]
        Listing(self.layout, o.rows, anchors, o.ids[anchors]).check("matches()", high - low - 1)
        structs = whole(o.rows["a0"])
        met: list[pa.Array] = []
        for start, stop in portions(high - low, _PAIRS):
            rows, ids = expand(low[start:stop], high[start:stop])
            others = rows != anchors[start:stop][ids]
            met.append(lists(pick(structs, rows[others]), ids[others], stop - start))
        at = pa.array(anchors)
        arrays = [pick(o.rows[k], at) for k in self.layout.key_names]
        arrays += [unstamp(times - self.window.size_us, kind), unstamp(times + self.window.after_us, kind)]
        arrays += [pick(structs, at), pa.chunked_array(met, self.schema.field("matches").type)]
        return _finished(arrays, self.schema, op if isinstance(op, str) else op[order])


class MatchedPairs:
    """Every two rows that met and for which the condition holds, once; the earlier row is the left one."""

    additive = True

    def __init__(self, layout: Layout, window: LookBackWindow) -> None:
        self.layout, self.condition = layout, window.condition
        self.schema = layout.result_schema
        self.names = layout.spec.row_schema.names

    def __call__(self, o: Ordered, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """See :class:`Product`."""
        columns = dict(zip(self.names, whole(o.rows["a0"]).flatten(), strict=True))
        Listing(self.layout, o.rows, anchors, o.ids[anchors]).check("pairs()", anchors - r.low)
        lefts, rights = [], []
        for start, stop in portions(anchors - r.low, _PAIRS):
            left, ids = expand(r.low[start:stop], anchors[start:stop])
            right = anchors[start:stop][ids]
            if fresh is not None:
                new = fresh[left] | fresh[right]
                left, right = left[new], right[new]
            if self.condition is not None:
                kept = self._holds(self.condition, columns, left, right)
                left, right = left[kept], right[kept]
            lefts.append(left)
            rights.append(right)
        none = np.empty(0, np.int64)
        left, right = np.concatenate([none, *lefts]), np.concatenate([none, *rights])
        order = stable_order(o.times[right])
        sides = [(columns[n], side[order]) for side in (left, right) for n in self.names]
        return _finished([pick(column, at) for column, at in sides], self.schema, op)

    @staticmethod
    def _holds(condition: Expr, columns: dict[str, pa.Array], left: Ints, right: Ints) -> Mask:
        sides = {"left": pa.array(left), "right": pa.array(right)}
        needed = sorted(columns_of(condition)) or ["left_" + next(iter(columns))]
        arrays = [pick(columns[n.split("_", 1)[1]], sides[n.split("_", 1)[0]]) for n in needed]
        mask = pc.fill_null(evaluate(condition, pa.RecordBatch.from_arrays(arrays, names=needed)), False)
        holds: Mask = mask.to_numpy(zero_copy_only=False)
        return holds


def _finished(arrays: list[pa.Array], schema: pa.Schema, op: Op) -> pa.Table:
    """The table, with an ``op`` column where the plan asks for one."""
    if len(schema) > len(arrays):
        arrays = [*arrays, pa.repeat(pa.scalar(op), len(arrays[0])) if isinstance(op, str) else pa.array(op, pa.string())]
    return pa.Table.from_arrays(arrays, schema=schema)


def product_for(layout: Layout, window: LookBackWindow) -> Product:
    """Return what the window's results are made by."""
    kinds: dict[str, type[Aggregates] | type[Matches] | type[MatchedPairs]]
    kinds = {"aggregates": Aggregates, "matches": Matches, "pairs": MatchedPairs}
    return kinds[window.output](layout, window)
