"""The batches of a capture as a driver takes them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pyarrow as pa

from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import PlanError
from krishiv_py.in_process.batch import Sent
from krishiv_py.in_process.sources import ClockControl, clocks_of, controls_of
from krishiv_py.planner.history import names_of
from krishiv_py.planner.physical import PhysicalPlan, Read
from krishiv_py.runtime.capture import Captured, CapturedBatch
from krishiv_py.runtime.reading import Scanned


@attrs.frozen(eq=False)
class Turn:
    """Holds a batch, its rows as each stage reads them, and what it says of the watermark."""

    batch: CapturedBatch
    sent: dict[int, Sent]
    controls: list[ClockControl]


class Feed:
    """Gives the batches of a capture, one after the other.

    Raises
    ------
    PlanError
        When the plan reads a source that the capture does not have.
    """

    def __init__(self, captured: Captured, plan: PhysicalPlan) -> None:
        self.captured, self._plan, self._next = captured, plan, 0
        self._sources = [_source(read, captured, len(plan.reads)) for read in plan.reads]

    @property
    def left(self) -> int:
        """Return how many batches are to come."""
        return len(self.captured.batches) - self._next

    def next(self) -> Turn | None:
        """Return the next batch; None after the last one."""
        if not self.left:
            return None
        batch = self.captured.batches[self._next]
        self._next += 1
        turn = Turn(batch, {}, [])
        for read, source in zip(self._plan.reads, self._sources, strict=True):
            scanned = self.captured.read(batch, source)
            if not scanned:
                continue
            turn.controls.extend(controls_of(scanned, clocks_of(self._plan, read)))
            rows = _picked(scanned, read)
            for number, branch in read.takers:
                turn.sent.setdefault(number, []).append((StageOperator(branch.spec), rows))
        return turn


def _source(read: Read, captured: Captured, count: int) -> int:
    if count == 1 and len(captured.sources) == 1:
        return 0
    names = names_of(read)
    matches = [number for number, known in enumerate(captured.sources) if set(known[:1]) & set(names)]
    matches = matches or [number for number, known in enumerate(captured.sources) if set(known) & set(names)]
    if len(matches) == 1:
        return matches[0]
    known = ", ".join(repr(each[0]) for each in captured.sources)
    raise PlanError("the capture has no source of this name", got=repr(names[0]), hint=f"the sources are {known}")


def _picked(scanned: Sequence[Scanned], read: Read) -> list[Scanned]:
    """Return rows with the columns that the plan reads."""
    schema = pa.schema([read.source.schema.field(name) for name in read.needs_columns])
    result = []
    for one in scanned:
        if one.batch is None:
            result.append(one)
            continue
        missing = [name for name in schema.names if name not in one.batch.schema.names]
        if missing:
            hint = "use a column that the source had, or make the capture again"
            raise PlanError("the capture lacks a column that the pipeline reads", got=missing[0], hint=hint)
        columns = [one.batch.column(name) for name in schema.names]
        columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
        result.append(attrs.evolve(one, batch=pa.RecordBatch.from_arrays(columns, names=schema.names)))
    return result
