"""What a driver is sent: rows of its stream, or of several streams by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed, in_columns
from krishiv_py.engine.stage import Packed, Stage
from krishiv_py.errors import PlanError, message, shown
from krishiv_py.kernels.input.rows import as_batch
from krishiv_py.kernels.input.watermark import WatermarkTracker
from krishiv_py.kernels.moment import Moment
from krishiv_py.plan.schema import RESERVED
from krishiv_py.planner.physical import StagePlan
from krishiv_py.testing.sources import MicroBatch

Sent: TypeAlias = "list[tuple[Stage, pa.RecordBatch, tuple[Malformed, ...]]]"
ONLY: Final = ""


class Inlet:
    """Where rows enter a driver: the stages that read its source, each with what it does first with the rows of a stream."""

    def __init__(self, plans: Sequence[StagePlan], stages: Sequence[Stage]) -> None:
        self._stage = stages[0]
        self._streams = {b.name: Stage(b.spec) for b in plans[0].inputs if b.name is not None}
        self._readers: list[dict[str, Stage]] = [{ONLY: self._stage, **self._streams}]
        for plan, stage in zip(plans[1:], stages[1:], strict=True):
            self._readers.append({ONLY: stage, **{b.name: Stage(b.spec) for b in plan.inputs if b.name is not None}})

    def sent(self, rows: Any) -> list[Sent]:
        """The rows of a batch, in the order in which they arrive, as each of the stages reads them.

        Raises
        ------
        PlanError
            For names of streams that there are not, and for rows of a join without any.
        """
        bad: tuple[Malformed, ...] = ()
        if isinstance(rows, MicroBatch):
            rows, bad = rows.table, rows.malformed
        if isinstance(rows, Mapping) and self._streams:
            for name in rows:
                if name not in self._streams:
                    known = ", ".join(map(repr, self._streams))
                    raise PlanError(
                        message("no such stream", shown(name), "its rows have no place", f"the streams are called {known}")
                    )
            found = list(rows.items())
        else:
            if any(n.startswith(RESERVED) for n in self._stage.spec.source_schema.names):
                names = ", ".join(f'"{name}": [...]' for name in self._streams)
                raise PlanError(
                    message(
                        "rows of a join belong to one of its sides",
                        type(rows).__name__,
                        "no side is named",
                        f"send {{{names}}}",
                    )
                )
            found = [(ONLY, rows)]
        batches = [(name, as_batch(part, self._readers[0][name].spec.source_schema)) for name, part in found]
        return [[(reads[name], batch, bad) for name, batch in batches] for reads in self._readers]


def packed(sent: Sent, moment: Moment, tracker: WatermarkTracker, now_us: int) -> Packed:
    """The rows of a batch, judged and combined; the tracker learns of their times."""
    parts = []
    for stage, batch, bad in sent:
        packing = stage.pack(moment)
        if bad:
            packing.refuse(in_columns(bad))
        tracker.saw(packing.take(batch), now_us)
        parts.append(packing.packed())
    return Packed([c for p in parts for c in p.chunks], [t for p in parts for t in p.late], [n for p in parts for n in p.notes])
