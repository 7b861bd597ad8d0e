"""Define what the operators of joins share: the layouts of both sides, and rows on their way to the bucket of their key."""

from __future__ import annotations

from typing import TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.joins.sides import NUMBER, Fresh, HalfLayout, combined, fresh_rows
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Section
from krishiv_py.kernels.state.window_log import HASH
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.joins import Join
from krishiv_py.plan.sides import LEFT

Both: TypeAlias = tuple[Fresh, Fresh]


@attrs.define
class Joined(Section):
    """Up to which watermark rows have left, and how many have arrived on each side."""

    joined_at: int = UNSET
    arrived_left: int = 0
    arrived_right: int = 0

    def fresh(self, chunks: list[pa.Table], halves: tuple[HalfLayout, HalfLayout], schemas: tuple[pa.Schema, ...]) -> Both:
        """Return the rows that a batch brings to both sides, which are numbered on."""
        left, right = (
            fresh_rows(half, schema, chunks, arrived)
            for half, schema, arrived in zip(halves, schemas, (self.arrived_left, self.arrived_right), strict=True)
        )
        self.arrived_left += left.table.num_rows
        self.arrived_right += right.table.num_rows
        return left, right


def columns_of(layout: Layout, side: str) -> slice:
    """Return where the columns of a side, "left" or "right", are among the own columns of a join."""
    assert isinstance(layout.spec.operation, Join)
    lefts = 1 + len(layout.spec.operation.sides.left)  # the first names the side
    return slice(1, lefts) if side == "left" else slice(lefts, None)


class JoinOperator:
    """Base of the operators: both sides come as one stream of rows, of which each has the columns of its own side."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, Join)
        self.join = spec.operation
        self.layout = Layout(spec)
        self.late_us = spec.options.allowed_lateness_us
        keys, own = tuple(self.layout.key_names), self.layout.own_names[1:]
        lefts = len(spec.operation.sides.left)
        self.halves = HalfLayout(True, keys, tuple(own[:lefts])), HalfLayout(False, keys, tuple(own[lefts:]))

    def schema_of(self, half: HalfLayout) -> pa.Schema:
        """Return the rows of a side as they are kept: hash, time, number, keys, own columns."""
        own = [pa.field(n, pa.int64()) for n in (HASH, TIME, NUMBER)]
        return pa.schema([*own, *(self.layout.row_schema.field(n) for n in (*half.keys, *half.own))])

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The columns of each side that results have."""
        return list(self.halves[0].own), list(self.halves[1].own)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are, with the hash of their key, without the columns of the other side."""
        return combined(self.layout, rows, *self.halves, self.layout.own_names[0], LEFT)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`: refused."""
        raise PlanError(
            "state has no aggregates to show",
            got=self.join.describe(),
            then="a join keeps rows of both sides",
            hint="read the results, or how many rows are held from the progress",
        )
