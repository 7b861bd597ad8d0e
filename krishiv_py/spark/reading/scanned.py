"""What readers hand on."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.spark.reading.malformed import Malformed
from krishiv_py.spool import Control


@attrs.frozen(eq=False)
class Scanned:
    """Rows of a source, a control, or input that was put aside; `now_us` is when rows were sent, where that is known."""

    batch: pa.RecordBatch | None
    control: Control | None = None
    now_us: int | None = None
    malformed: tuple[Malformed, ...] = ()
