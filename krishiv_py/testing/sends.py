"""Rows that a driver is sent, and what one call of it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed
from krishiv_py.display.html import rows_html
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import PlanError, shown
from krishiv_py.in_process.batch import Sent
from krishiv_py.kernels.input.rows import as_batches
from krishiv_py.plan.durations import show_instant
from krishiv_py.plan.nodes import root_of
from krishiv_py.plan.schema import RESERVED
from krishiv_py.planner.cut import Branch
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.reading import Scanned
from krishiv_py.testing.streams import MicroBatch

Takers: TypeAlias = "list[tuple[int, StageOperator]]"


class DriverInput:
    """Says where rows enter a driver: the stages that read a source, each with what it does first with the rows of a stream."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._streams = {r.name: _takers(r.takers) for r in plan.reads if r.name is not None}
        self._whole = self._plain(plan)

    def _plain(self, plan: PhysicalPlan) -> Takers | None:
        """Return who takes rows that name no stream; None where they must."""
        if len(plan.reads) == 1:
            return _takers(plan.reads[0].takers)
        stages = [plan.stages[n] for n in plan.roots]
        sided = any(s.after for s in stages) or len({id(root_of(s.node.input)) for s in stages}) > 1
        if sided or any(n.startswith(RESERVED) for n in stages[0].spec.source_schema.names):
            return None
        return [(n, StageOperator(plan.stages[n].spec)) for n in plan.roots]

    def sent(self, rows: Any) -> dict[int, Sent]:
        """Return the rows of a batch, in the order in which they arrive, as each of the stages reads them, by its number.

        Raises
        ------
        PlanError
            For names of streams that there are not, and for rows of a join without any.
        """
        sent_by_source: dict[int, Sent] = {}
        for takers, part in self._parts(rows):
            bad: tuple[Malformed, ...] = ()
            if isinstance(part, MicroBatch):
                part, bad = part.table, part.malformed
            read = [Scanned(batch) for batch in as_batches(part, takers[0][1].spec.source_schema)]
            for number, stage in takers:
                sent_by_source.setdefault(number, []).append((stage, [Scanned(None, malformed=bad), *read] if bad else read))
        return sent_by_source

    def _parts(self, rows: Any) -> list[tuple[Takers, Any]]:
        if isinstance(rows, Mapping) and self._streams:
            for name in rows:
                if name not in self._streams:
                    known = ", ".join(map(repr, self._streams))
                    raise PlanError("no such stream", got=shown(name), hint=f"the streams are called {known}")
            return [(self._streams[name], part) for name, part in rows.items()]
        if self._whole is None:
            if isinstance(rows, list) and not rows:  # a batch without rows
                return []
            names = ", ".join(f'"{name}": [...]' for name in self._streams)
            raise PlanError("rows of a join belong to one of its sides", got=type(rows).__name__, hint=f"send {{{names}}}")
        return [(self._whole, rows)]


def _takers(takers: Sequence[tuple[int, Branch]]) -> Takers:
    return [(number, StageOperator(branch.spec)) for number, branch in takers]


@attrs.frozen(eq=False, repr=False)
class StepOutput:
    """The output of one call.

    Attributes
    ----------
    results : pyarrow.Table
        Results, in firing order.
    late : pyarrow.Table
        Rows that entered no window, with ``reason``, ``watermark``, ``lateness``. They are whole rows if the late handler
        wants whole rows. Otherwise computed columns that nothing needs are missing.
    watermark_us : int
        The watermark afterwards, µs.
    late_by_stage : dict
        Late rows by the name of their stage; `late` has those of the first one.
    by_output : dict
        Results by the name of their output; `results` has those of the first one.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window("10 s").agg(count()))
    >>> out = driver.send([{"at": 12_000}, {"at": None}])
    >>> out.results.num_rows, out.late.column("reason").to_pylist(), out.watermark_us
    (0, ['null_time'], 12000000)
    """

    results: pa.Table
    late: pa.Table
    watermark_us: int
    late_by_stage: dict[str, pa.Table] = attrs.field(factory=dict)
    by_output: dict[str, pa.Table] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        rows = _rows(self.by_output, self.results, "result"), _rows(self.late_by_stage, self.late, "late row")
        return f"<StepOutput {'; '.join(rows)}; watermark {show_instant(self.watermark_us)}>"

    def _repr_html_(self) -> str:
        """Return the results and late rows as tables, of each output and stage."""
        late = {f"late rows of {name}": table for name, table in self.late_by_stage.items()} or {"late rows": self.late}
        aside = f"watermark {show_instant(self.watermark_us)}"
        return rows_html("Output of a step", aside, {**(self.by_output or {"results": self.results}), **late})


def _rows(named: dict[str, pa.Table], first: pa.Table, what: str) -> str:
    """Return how many there are, by name where there are several tables."""
    total = sum(table.num_rows for table in named.values()) if named else first.num_rows
    text = f"{total} {what}{'' if total == 1 else 's'}"
    return text if len(named) < 2 else f"{text} ({', '.join(f'{name}: {table.num_rows}' for name, table in named.items())})"
