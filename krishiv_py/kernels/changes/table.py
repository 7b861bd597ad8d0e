"""Base of the operators whose results are tables: what a batch changes, what state shows, and what leaves with its key."""

from __future__ import annotations

from abc import ABC, abstractmethod

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.changes.counted import ROWS
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import SIGN, Layout
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.kernels.ttl import ExpiringOperator
from krishiv_py.plan.changes import DELETE


@attrs.frozen(eq=False)
class TableChange:
    """Holds what a batch makes of a table: changes of results, rows that are put aside, and what is counted.

    Attributes
    ----------
    results : pyarrow.Table
        The changes.
    late : list of pyarrow.Table
        Rows in the late layout.
    counters : dict
        What is counted besides.
    wakeup_now_us : int or None
        The processing time at which there is something to do without rows.
    """

    results: pa.Table
    late: list[pa.Table] = attrs.field(factory=list)
    counters: dict[str, int] = attrs.field(factory=dict)
    wakeup_now_us: int | None = None


class TableOperator(ABC):
    """See the module's docstring.

    Parameters
    ----------
    spec : OperatorSpec
        Its specification.
    columns : list of pyarrow.Field
        The columns of rows that it needs besides keys.
    counts : bool
        Whether rows come with their number, 1 or -1, as the last column.
    """

    def __init__(self, spec: OperatorSpec, columns: list[pa.Field], *, counts: bool) -> None:
        self.layout = layout = Layout(spec)
        self.names = layout.key_names
        self.withdraws = spec.options.emit_mode == "retractions"
        self.forgets = spec.options.ttl is not None
        """True if keys are forgotten, so that rows may be withdrawn that are not there any more."""
        self._counts = counts
        number = [pa.field(ROWS, pa.int64())] if counts else []
        self.chunk_schema = pa.schema([*layout.key_fields, *columns, *number])

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the columns that are needed of rows."""
        names = self.chunk_schema.names
        if not self._counts:
            return rows.select(names)
        signs = rows[SIGN].cast(pa.int64()) if SIGN in rows.column_names else pa.array(np.ones(rows.num_rows, np.int64))
        return pa.Table.from_arrays([*(rows[name] for name in names[:-1]), signs], schema=self.chunk_schema)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        fresh = pa.concat_tables([self.chunk_schema.empty_table(), *chunks])
        done = self.change(bucket, fresh, moment)
        late = pa.concat_tables(done.late) if done.late else None
        n = done.results.num_rows
        return StepResult(done.results, None, 0, self.count_entries(bucket), n, done.counters, late, done.wakeup_now_us)

    @abstractmethod
    def change(self, bucket: Bucket, fresh: pa.Table, moment: Moment) -> TableChange:
        """Take the rows of a batch, of which there may be none."""

    @abstractmethod
    def count_entries(self, bucket: Bucket) -> int:
        """Return how many entries are in state."""

    @abstractmethod
    def rows_of(self, bucket: Bucket, touched: TouchedKeys) -> pa.Table:
        """Return the results of some keys as they stand, without the kind of a change."""

    @abstractmethod
    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """Take keys out of state; returns how many rows or keys went."""

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`."""
        return self.drop(bucket, DeadKeys.of(dead, self.names))

    def withdrawn(self, bucket: Bucket, dead: pa.Table) -> pa.Table:
        """Return the withdrawal of the results of some keys."""
        schema = self.layout.result_schema
        touched, _ = TouchedKeys.of(dead, self.names)
        rows = self.rows_of(bucket, touched)
        if not self.withdraws:
            return schema.empty_table()
        return pa.Table.from_arrays([*rows.columns, pa.repeat(pa.scalar(DELETE), rows.num_rows)], schema=schema)

    @property
    def row_fields(self) -> pa.Schema:
        """Return the columns of results, without the kind of a change."""
        schema = self.layout.result_schema
        return pa.schema(list(schema)[: len(schema) - 1]) if self.withdraws else schema

    def with_written(self, rows: pa.Table, written: pa.ChunkedArray | pa.Array) -> pa.Table:
        """Return rows of the table of state, with when each was written."""
        name = self.layout.spec.operation.free_name("last_update", rows.column_names)
        return rows.append_column(name, unstamp(written.to_numpy(), "timestamp"))


class ExpiringTable(ExpiringOperator):
    """The time to live of the keys of a table: what is forgotten is withdrawn, or stays with who has it (SEMANTICS §16.5)."""

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`."""
        self._withdrawn: list[pa.Table] = []
        done = super().step(bucket, chunks, moment)
        results = pa.concat_tables([done.results, *self._withdrawn])
        return attrs.evolve(done, results=results, firings=results.num_rows)

    def _drop(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`."""
        assert isinstance(self.inner, TableOperator)
        assert self.layout.spec.options.ttl is not None
        if self.layout.spec.options.ttl.on_expiry == "keep":
            return super()._drop(bucket, dead, moment)
        self._withdrawn.append(self.inner.withdrawn(bucket, dead))
        return super()._drop(bucket, dead, moment)
