"""Define what one call of the driver gives."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.display.html import rows_html
from krishiv_py.plan.durations import show_instant


@attrs.frozen(eq=False, repr=False)
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

    def __repr__(self) -> str:
        rows = _rows(self.by_output, self.results, "result"), _rows(self.late_by_stage, self.late, "late row")
        return f"<StepOutput {'; '.join(rows)}; watermark {show_instant(self.watermark_us)}>"

    def _repr_html_(self) -> str:
        """The results and late rows as tables, of each output and stage."""
        late = {f"late rows of {name}": table for name, table in self.late_by_stage.items()} or {"late rows": self.late}
        aside = f"watermark {show_instant(self.watermark_us)}"
        return rows_html("Output of a step", aside, {**(self.by_output or {"results": self.results}), **late})


def _rows(named: dict[str, pa.Table], first: pa.Table, what: str) -> str:
    """Return how many there are, by name where there are several tables."""
    total = sum(table.num_rows for table in named.values()) if named else first.num_rows
    text = f"{total} {what}{'' if total == 1 else 's'}"
    return text if len(named) < 2 else f"{text} ({', '.join(f'{name}: {table.num_rows}' for name, table in named.items())})"
