"""Define what readers hand on."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed
from krishiv_py.plan.running.control import Control


@attrs.frozen(eq=False)
class Scanned:
    """Rows of a source, a control, or input that was set aside.

    `now_us` is when rows were sent, and `partition` names where they are from, where that is known.
    """

    batch: pa.RecordBatch | None
    control: Control | None = None
    now_us: int | None = None
    malformed: tuple[Malformed, ...] = ()
    partition: str = ""

    @property
    def only_time(self) -> bool:
        """Return whether it is a send without rows, which says no more than when it was."""
        return self.batch is None and self.control is None and not self.malformed
