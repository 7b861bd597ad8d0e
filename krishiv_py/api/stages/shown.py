"""A stage of a stream shows itself as a line, and answers a caller that takes it for a table of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from krishiv_py.errors import PlanError, shown
from krishiv_py.failures.redaction import redacted
from krishiv_py.missing import OfOneProcess
from krishiv_py.plan.aggregates.outputs import computed
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.nodes import StageDraft, UnionSource, Watermark, source_of, stages_read
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec, lag_text, least_of
from krishiv_py.plan.schema import RESERVED

_MOST_NAMES: Final = 6
_LONGEST: Final = 160


class ShownInALine(OfOneProcess):
    """A stream whose ``repr`` is one line: what it is, its columns, keys and window. Nothing changes it: a copy is the same."""

    __slots__ = ()
    _instead = (
        "a plan that belongs to its session",
        "send a function that builds the pipeline: def pipeline(stream): return stream.watermark(...)",
    )

    def _said(self) -> list[str]:
        """Return the parts of the line."""
        raise NotImplementedError

    if not TYPE_CHECKING:  # for a type checker it has no items, and nothing to go through

        def __getitem__(self, item: object) -> NoReturn:
            """Say what to write for ``stream["amount"]``, ``stream[:10]`` and ``for row in stream``."""
            hint = "write .collect() for the rows of a finite input, or Driver(stream).send(rows) in a test"
            if isinstance(item, str):
                hint = f'write col("{item}") for a column, and .select("{item}") for a stream of it'
            elif isinstance(item, Expr):
                hint = "write .filter(condition)"
            elif isinstance(item, list):
                hint = "write .select(*columns)"
            raise PlanError("a stream is a plan: it has neither items nor rows", got=f"stream[{shown(item)}]", hint=hint)

    def __repr__(self) -> str:
        text = redacted(" ".join("; ".join(part for part in self._said() if part).split()))
        return f"<{type(self).__name__} {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}>"


def some(names: Iterable[str]) -> str:
    """Return the first names of some, without those that are the library's own."""
    listed = [name for name in names if not name.startswith(RESERVED)]
    more = f", … {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return ", ".join(listed[:_MOST_NAMES]) + more


def said_of(draft: StageDraft) -> list[str]:
    """Return what is known of a query: event time, keys, window, aggregates."""
    mark, operation = draft.input, draft.operation
    column = "" if mark.column.startswith(RESERVED) else f"event time {mark.column}, "
    timed = f"{column}watermark {_watermark(mark)}" if mark.column else ""
    output, aggs = (None, ()) if operation is None else (operation.result_columns, operation.aggs)
    named = [agg.output_name for agg in aggs] if output is None else computed(output, draft.keys)
    return [
        timed,
        f"by {some(draft.keys)}" if draft.keys else "",
        "" if operation is None else operation.describe(),
        f"gives {some(named)}" if named else "",
    ]


def _watermark(mark: Watermark) -> str:
    """Show the distance of a watermark from the rows of sources, also where it follows results of stages."""
    source, lags = source_of(mark), _lags(mark)
    if isinstance(mark.spec, MultiSourceWatermarkSpec):
        names = [name for name, _ in mark.spec.sources]
        only = isinstance(source, UnionSource) and names == [name for name, _ in source.parts]
        return least_of(mark.spec, [lag_text(*lag) for lag in lags]) if only else mark.spec._describe()
    return f"max(event time) - {show_us(lags[0][1])}" if stages_read(mark) and len(lags) == 1 else mark.spec._describe()


def _lags(mark: Watermark) -> list[tuple[str, int]]:
    """Return the streams of sources by the sides of joins, each with the lag of a watermark after its rows, µs."""
    lags, before = list[tuple[str, int]](), dict(stages_read(mark))
    own = mark.spec
    specs: Sequence[tuple[str | None, WatermarkSpec]] = (
        own.sources if isinstance(own, MultiSourceWatermarkSpec) else ((None, own),)
    )
    for name, spec in specs:
        if name not in before:
            lags.append((name or "", spec.lag_us))
            continue
        stage = before[name]
        held_us = stage.operation.hold_back_us(stage.options) + spec.lag_us
        lags += [(".".join(filter(None, (name, inner))), held_us + lag_us) for inner, lag_us in _lags(stage.input)]
    return lags
