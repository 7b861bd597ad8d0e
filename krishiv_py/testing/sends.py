"""What a driver is sent: rows of its stream, or of several streams by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_py.engine.stage import Packed, Stage
from krishiv_py.errors import PlanError, message, shown
from krishiv_py.kernels.input.rows import as_batch
from krishiv_py.kernels.input.watermark import WatermarkTracker
from krishiv_py.kernels.moment import Moment
from krishiv_py.plan.schema import RESERVED
from krishiv_py.planner.physical import StagePlan

Sent: TypeAlias = "list[tuple[Stage, pa.RecordBatch]]"


class Inlet:
    """Where rows enter a driver."""

    def __init__(self, plan: StagePlan, stage: Stage) -> None:
        self._stage = stage
        self._streams = {b.name: Stage(b.spec) for b in plan.inputs if b.name is not None}

    def sent(self, rows: Any) -> Sent:
        """The rows of a batch, in the order in which they arrive.

        Raises
        ------
        PlanError
            For names of streams that there are not, and for rows of a join without any.
        """
        if isinstance(rows, Mapping) and self._streams:
            for name in rows:
                if name not in self._streams:
                    known = ", ".join(map(repr, self._streams))
                    raise PlanError(
                        message("no such stream", shown(name), "its rows have no place", f"the streams are called {known}")
                    )
            found = [(self._streams[name], part) for name, part in rows.items()]
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
            found = [(self._stage, rows)]
        return [(stage, as_batch(part, stage.spec.source_schema)) for stage, part in found]


def packed(sent: Sent, moment: Moment, tracker: WatermarkTracker, now_us: int) -> Packed:
    """The rows of a batch, judged and combined; the tracker learns of their times."""
    parts = []
    for stage, batch in sent:
        packing = stage.pack(moment)
        tracker.saw(packing.take(batch), now_us)
        parts.append(packing.packed())
    return Packed([c for p in parts for c in p.chunks], [t for p in parts for t in p.late], [n for p in parts for n in p.notes])
