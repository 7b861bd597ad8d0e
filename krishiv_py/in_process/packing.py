"""The rows of a micro-batch as stages read them: judged and combined before the window step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from krishiv_py.connectors.malformed import in_columns
from krishiv_py.engine.stage import Packed, Stage
from krishiv_py.kernels.moment import Moment
from krishiv_py.runtime.reading.scanned import Scanned

Sent: TypeAlias = "list[tuple[Stage, Iterable[Scanned]]]"
"""For each stream that a stage reads: the stage with the steps of this stream in front, and what was read of it."""

_FLUSH_ROWS: Final = 1 << 18


def packed(sent: Sent, moment: Moment, saw: Callable[[dict[str, int]], None]) -> Packed:
    """The rows of a batch, judged and combined; `saw` learns of their largest times by source."""
    chunks, late, notes = [], [], []
    for stage, found in sent:
        packing = stage.pack(moment)
        for scanned in found:
            if scanned.malformed:
                packing.refuse(in_columns(scanned.malformed))
            if scanned.batch is None:
                continue
            saw(packing.take(scanned.batch, scanned.partition))
            if packing.full(_FLUSH_ROWS):
                chunks += packing.chunks()
        chunks += packing.chunks()
        late += packing.late
        notes.append(packing.notes)
    return Packed(chunks, late, notes)
