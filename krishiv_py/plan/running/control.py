"""Define what moves a watermark, or tells the time, and is not read from rows."""

from __future__ import annotations

import attrs


@attrs.frozen
class Control:
    """A watermark to reach, or a heartbeat: what a control file says.

    Attributes
    ----------
    watermark_us : int
        The watermark to reach; ``UNSET`` for a heartbeat, which only tells the time.
    source : str or None
        The source it is for; None means all.
    now_us : int
        Processing time at which it was written, µs.
    snapshot : bool
        Whether what is open is to be given as early results (SEMANTICS §10).
    """

    watermark_us: int
    source: str | None
    now_us: int
    snapshot: bool = False
