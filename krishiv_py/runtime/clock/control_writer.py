"""Wakes: control files that stand for the batch without rows, where Spark runs none.

Spark runs a batch without rows when its watermark has moved, and wakes operators by timers that follow it. Where the watermark
is that of a DataFrame on the way in, both follow other times than ours. So when ours has moved a control file is written, the
next batch reads it, and every bucket gets a word to go on (``Clock.wakes``).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running import Control
from krishiv_py.runtime.clock.controls import ControlFolder


@attrs.frozen(eq=False)
class ControlWriter:
    """Writes them.

    Attributes
    ----------
    controls : ControlFolder
        Where.
    tidies : bool
        Whether it removes what batches have read, as nobody else does.
    now : callable
        Processing time, µs.
    """

    controls: ControlFolder
    tidies: bool
    now: Callable[[], int]

    def batch_done(self, *, moved: bool) -> None:
        """To be called once in every batch, before Spark marks it as done: whether it has `moved` the watermark."""
        if self.tidies:
            self.controls.batch_done()
        if moved:
            self.controls.write(Control(UNSET, None, self.now()))
