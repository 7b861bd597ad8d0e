"""Define what follows from ``available_now(flush=True)``: the end of input was declared, and no row can come after it."""

from __future__ import annotations

import warnings
from typing import Final

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import users_line
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.nodes import MemorySource, Source
from krishiv_py.redaction import shown_text

NOTE: Final = (
    "warning: flush=True declares the end of input: every row that comes later from this checkpoint is late. "
    "Leave flush out to go on later"
)


def warn_if_flushed(watermark_us: int, checkpoint: str, source: Source) -> None:
    """Warn at the start of a query whose checkpoint saw the end of input; what is closed or finite gets no more rows anyway."""
    ends = isinstance(source, MemorySource) or (isinstance(source, RangeSource) and source.bounded)
    if watermark_us == END_OF_TIME and not ends:
        warnings.warn(
            f"the end of input was declared in the checkpoint {shown_text(checkpoint)}, by available_now(flush=True): every "
            "row that comes now is late. Hint: use a new checkpoint, and leave flush out if more input is to come",
            stacklevel=users_line(),
        )
