"""The rows of a micro-batch as stages read them: judged and combined before the window step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed, in_columns
from krishiv_py.engine.stage import Packed, Stage
from krishiv_py.kernels.moment import Moment

Sent: TypeAlias = "list[tuple[Stage, list[pa.RecordBatch], tuple[Malformed, ...]]]"
"""For each stream that a stage reads: the stage with the steps of this stream in front, its rows, and what is no row."""


def packed(sent: Sent, moment: Moment, saw: Callable[[dict[str, int]], None]) -> Packed:
    """The rows of a batch, judged and combined; `saw` learns of their largest times by source."""
    parts = []
    for stage, batches, bad in sent:
        packing = stage.pack(moment)
        if bad:
            packing.refuse(in_columns(bad))
        for batch in batches:
            saw(packing.take(batch))
        parts.append(packing.packed())
    return Packed([c for p in parts for c in p.chunks], [t for p in parts for t in p.late], [n for p in parts for n in p.notes])
