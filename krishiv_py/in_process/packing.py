"""The rows of a micro-batch as stages read them: judged and combined before the window step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed, in_columns
from krishiv_py.engine.stage import Packed, Stage
from krishiv_py.kernels.moment import Moment

Sent: TypeAlias = "list[tuple[Stage, Iterable[pa.RecordBatch | tuple[Malformed, ...]]]]"
"""For each stream that a stage reads: the stage with the steps of this stream in front, and its rows and what is no row."""

_FLUSH_ROWS: Final = 1 << 18


def packed(sent: Sent, moment: Moment, saw: Callable[[dict[str, int]], None]) -> Packed:
    """The rows of a batch, judged and combined; `saw` learns of their largest times by source."""
    chunks, late, notes = [], [], []
    for stage, found in sent:
        packing = stage.pack(moment)
        for rows in found:
            if isinstance(rows, tuple):
                packing.refuse(in_columns(rows))
                continue
            saw(packing.take(rows))
            if packing.full(_FLUSH_ROWS):
                chunks += packing.chunks()
        chunks += packing.chunks()
        late += packing.late
        notes.append(packing.notes)
    return Packed(chunks, late, notes)
