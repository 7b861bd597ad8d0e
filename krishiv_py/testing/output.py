"""What one call of the driver gives."""

from __future__ import annotations

import attrs
import pyarrow as pa


@attrs.frozen(eq=False)
class StepOutput:
    """The output of one call.

    Attributes
    ----------
    results : pyarrow.Table
        Results, in firing order.
    late : pyarrow.Table
        Rows that entered no window, with ``reason``, ``watermark``, ``lateness``. They are whole rows if the late handler
        wants whole rows. Otherwise computed columns that nothing needs are missing.
    watermark_us : int
        The watermark afterwards, µs.
    late_by_stage : dict
        Late rows by the name of their stage; `late` has those of the first one.
    by_output : dict
        Results by the name of their output; `results` has those of the first one.
    """

    results: pa.Table
    late: pa.Table
    watermark_us: int
    late_by_stage: dict[str, pa.Table] = attrs.field(factory=dict)
    by_output: dict[str, pa.Table] = attrs.field(factory=dict)
