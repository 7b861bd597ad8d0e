"""Watermarks of Spark's own next to ours: a query has one, the least of all, so that with two of them ours never moves."""

from __future__ import annotations

from typing import Any, Final

import attrs
from pyspark.sql import DataFrame

from krishiv_py.errors import OperatorError
from krishiv_py.kernels.state.store import Meta
from krishiv_py.plan.durations import MAX_TIME_US
from krishiv_py.runtime.clocks import clock_ms

_MARK: Final = "spark.watermarkDelayMs"
_NODE: Final = "EventTimeWatermark"
_OURS_FROM_MS: Final = 10**13
"""Real times in milliseconds are below (year 2286); ours travel shifted by 4.5e15, so few rows are below."""


def lags_of(frame: DataFrame) -> dict[str, int] | None:
    """Of a streaming frame that carries a watermark, how far it is behind its columns, µs; None for one that carries none."""
    if not frame.isStreaming:
        return None
    lags = {f.name: int(f.metadata[_MARK]) * 1_000 for f in frame.schema if _MARK in (f.metadata or {})}
    return lags if lags or _NODE in _plan_of(frame) else None


def _plan_of(frame: DataFrame) -> str:
    """Return the analysed plan as text; empty where this Spark does not tell it."""
    try:
        own: Any = frame
        if hasattr(own, "_explain_string"):  # Spark Connect
            return str(own._explain_string(extended=True))
        return str(own._jdf.queryExecution().analyzed().toString())
    except Exception:  # noqa: BLE001  # private to PySpark: without it the column's own mark is what there is
        return ""


@attrs.define
class MarkCheck:
    """Holds Spark's watermark against what a bucket has seen, where it is all we have: in frames that go on in plain Spark."""

    operator: str
    tick_us: int
    lag_us: int
    spark_ms: int = 0

    def __call__(self, meta: Meta, maxima: list[dict[str, int]]) -> None:
        """Refuse a batch under a watermark that is not ours although rows of earlier ones must have moved it."""
        if meta.get("moved") and self.spark_ms < _OURS_FROM_MS:
            hint = "write to_dataframe(checkpoint=...), and start with the query that reads the frame"
            raise OperatorError(
                f"{self.operator}: another watermark holds back the one of to_dataframe()",
                got=f"{self.spark_ms} after rows that moved it",
                then="no window would ever end",
                hint=hint,
            )
        newest = [time_us for by_source in maxima for time_us in by_source.values()]
        if newest and clock_ms(max(max(newest) - self.lag_us, -MAX_TIME_US), self.tick_us) >= _OURS_FROM_MS:
            meta["moved"] = True
