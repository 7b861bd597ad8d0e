"""The lag of a column that a DataFrame with a watermark brings along."""

from __future__ import annotations

from krishiv_py.errors import DurationError, shown
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import FrameSource, MapBatches, Node, Project, chain


def frame_lag_us(node: Node, column: str) -> int | None:
    """Return how far the watermark of the DataFrame is behind this column, µs; None where the column has none, or is
    computed.
    """
    name = column
    for step in chain(node):
        if isinstance(step, MapBatches):
            return None
        if isinstance(step, Project):
            expr = dict(step.columns).get(name)
            if not isinstance(expr, Col):
                return None
            name = expr.name
        if isinstance(step, FrameSource):
            return None if step.lags_us is None else step.lags_us.get(name)
    return None


def known_lag_us(node: Node, column: str) -> int:
    """The lag of a column that was not told with it.

    Raises
    ------
    DurationError
        Where none is known.
    """
    found = frame_lag_us(node, column) if isinstance(column, str) else None
    if found is None:
        raise DurationError(
            "the watermark has no `lag`",
            got=shown(column),
            hint='write .watermark("event_time", "5 s"); only a column of a DataFrame with .withWatermark(...) brings its own',
        )
    return found
