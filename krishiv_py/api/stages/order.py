"""The answers of a stage that are not steps: how it shows itself, and what to write for steps by another name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from krishiv_py.api import elsewhere
from krishiv_py.errors import PlanError, shown
from krishiv_py.missing import OfOneProcess
from krishiv_py.plan.aggregates.outputs import computed
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.nodes import Draft, UnionSource, Watermark, source_of, stages_read
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec, lag_text, least_of
from krishiv_py.plan.schema import RESERVED
from krishiv_py.redaction import redacted

WINDOWS: Final = (
    *("tumbling_window", "hopping_window", "sliding_window", "cumulate_window", "lookback_window"),
    *("session_window", "count_window", "windowed_by", "time_interval_window"),
)
JOINS: Final = ("interval_join", "asof_join", "window_join")
RESULTS: Final = ("collect", "collect_with_aggs", "to_pandas", "to_dataframe", "start", "run")

_STEPS: Final = ("select", "filter", "expect", "with_column", "rename", "drop", "map_batches", "unnest", "lookup_join", "split")
_WINDOW_CALL: Final = 'write .tumbling_window("1 minute"), or another window, and then .agg(count())'
_MARK: Final = 'write .watermark("event_time", "5 seconds")'
_CALENDAR: Final = 'write .window(calendar_window("day", "Europe/Berlin"))'

_ANYWHERE: Final = {**elsewhere.ANYWHERE, "calendar_window": _CALENDAR}
_AGGREGATE: Final = dict.fromkeys(
    elsewhere.AGGREGATE, 'write .agg(count(), sum("x")); udaf(...) makes an aggregate of your own'
)
_COUNTS: Final = {theirs: f"write .agg({ours}(...))" for theirs, ours in elsewhere.COUNTS.items()}
_MARKS: Final = dict.fromkeys(elsewhere.MARKS, _MARK)

_LISTED: Final = dict.fromkeys(("matches", "pairs"), "only .lookback_window(...) tells which rows met")
_EVENTS: Final = {"on_events": "only .time_interval_window(...) tells events of panes"}
_OF_RESULTS: Final = ("results", "to", "explain", "plan", "toPandas", "toDF", "to_df")
_NO_RESULTS: Final = dict.fromkeys(_OF_RESULTS, f"{_WINDOW_CALL} first")
_RANKS: Final = 'write .tumbling_window("1 minute"), or another window, and then .top_rows(3, "amount")'
_PARTS: Final = 'call .split("amount > 100") before .watermark(...), or part results with .filter(...)'
_OPTIONS: Final = (
    *("allowed_lateness", "late_rule", "emit", "trigger", "preset", "accumulation"),
    *("future_tolerance", "null_keys", "max_listed", "named", "with_pane", "with_state_ttl"),
)


def _name(call: str) -> str:
    return call.partition("(")[0]


def _once(ready: str, ways: Mapping[str, str]) -> dict[str, str]:
    """Return the ways of the end of a pipeline, which can be written once the stream is `ready`."""
    ends = ("write .start(", "write .collect(", "start it with .start(", "write query = .start(")
    return {name: f"{ready}; then {way}" for name, way in ways.items() if way.startswith(ends)}


ON_ROWS: Final = {
    **_ANYWHERE,
    **_LISTED,
    **_EVENTS,
    **_NO_RESULTS,
    **dict.fromkeys(elsewhere.TOP, f"{_MARK}; then {_RANKS}"),
    **_MARKS,
    **{theirs: f"write .{ours}" for theirs, ours in elsewhere.STEPS.items()},
    **dict.fromkeys(elsewhere.KEYS, 'write .key_by("user_id")'),
    **dict.fromkeys(elsewhere.WINDOWINGS, f"{_MARK}, and then a window"),
    **dict.fromkeys(elsewhere.COUNT_WINDOWS, f"{_MARK}, and then .count_window(100)"),
    **{theirs: f"{_MARK}, a window, and then .agg({ours}(...))" for theirs, ours in elsewhere.COUNTS.items()},
    **_AGGREGATE,
    "key_by": f"the stream is keyed already; {_MARK} next",
    **dict.fromkeys(_OPTIONS, f"{_MARK} first"),
}
"""Before the watermark."""
ON_KEYED: Final = {
    **ON_ROWS,
    **{name: f"call .{name}(...) before .key_by(...)" for name in _STEPS},
    **{theirs: f"call .{ours} before .key_by(...)" for theirs, ours in elsewhere.STEPS.items()},
    **dict.fromkeys(elsewhere.KEYS, "the stream is keyed already"),
    **_once(f"{_MARK}, a window, and .agg(...)", _ANYWHERE),
    "with_late_event_handler": "call it before .key_by(...), or after .watermark(...)",
}
"""Keyed, before the watermark."""
_BEFORE_MARK: Final = {name: f"call .{name}(...) before .watermark(...)" for name in _STEPS} | {
    theirs: f"call .{ours} before .watermark(...)" for theirs, ours in elsewhere.STEPS.items()
}
_MARKED: Final = dict.fromkeys(("watermark", "with_watermark", *_MARKS), "the stream has one; call .watermark(...) once") | {
    "processing_time": "the stream has its time; call either .watermark(...) or .processing_time(), once"
}
_AFTER_KEYS: Final = ("select", "filter", "expect", "with_column", "rename", "drop")
"""Steps that may follow the watermark, as long as the stream has no key."""
ON_TIMED: Final = {
    **_ANYWHERE,
    **_BEFORE_MARK,
    **{name: f"call .{name}(...) before .key_by(...)" for name in _AFTER_KEYS},
    **{theirs: f"write .{ours}, before .key_by(...)" for theirs, ours in elsewhere.STEPS.items() if _name(ours) in _AFTER_KEYS},
    **_LISTED,
    **_EVENTS,
    **_NO_RESULTS,
    **dict.fromkeys(elsewhere.TOP, _RANKS),
    "split": _PARTS,
    **_MARKED,
    **_AGGREGATE,
    **_COUNTS,
    "key_by": "the stream is keyed already; name all key columns in one key_by",
    **dict.fromkeys(elsewhere.KEYS, 'write .key_by("user_id"); windows follow it'),
    **dict.fromkeys(elsewhere.WINDOWINGS, _WINDOW_CALL),
    **dict.fromkeys(elsewhere.COUNT_WINDOWS, "write .count_window(100), and then .agg(count())"),
}
"""Between watermark and window."""
_WINDOWED: Final = dict.fromkeys(
    (*WINDOWS, *elsewhere.WINDOWINGS, *elsewhere.COUNT_WINDOWS),
    "a stream has one window; call .agg(...), or branch the stream before its window",
)
ON_WINDOWED: Final = {
    **_ANYWHERE,
    **_once("write .agg(count()) first", _ANYWHERE),
    **_BEFORE_MARK,
    **_MARKED,
    **_AGGREGATE,
    **_COUNTS,
    **dict.fromkeys(elsewhere.TOP, 'write .top_rows(3, "amount"), the largest rows of every window with their ranks'),
    **_WINDOWED,
    **dict.fromkeys(("key_by", *elsewhere.KEYS), 'call .key_by("user_id") before the window'),
    **_LISTED,
    **_EVENTS,
    **dict.fromkeys(_OF_RESULTS, "write .agg(count()) first"),
    **dict.fromkeys(JOINS, "call it before the window, or join results after .agg(...)"),
    "split": _PARTS,
}
"""Between window and aggregates."""
_ONE_AGG: Final = "name all aggregates in one .agg(...); another stage begins with .key_by(...) or a window"
ON_RESULTS: Final = {
    **_ANYWHERE,
    **{theirs: f"write .{ours}" for theirs, ours in elsewhere.STEPS.items()},
    **dict.fromkeys(elsewhere.KEYS, 'write .key_by("user_id"); windows follow it'),
    **dict.fromkeys(elsewhere.WINDOWINGS, _WINDOW_CALL),
    **dict.fromkeys(elsewhere.COUNT_WINDOWS, "write .count_window(100), and then .agg(count())"),
    **dict.fromkeys(("with_watermark", *_MARKS), 'write .watermark("window_time", lag)'),
    "processing_time": "results have the time of their windows, and go on by the clock of the stage before",
    **_LISTED,
    **_EVENTS,
    **dict.fromkeys(("agg", *_AGGREGATE, *_COUNTS), _ONE_AGG),
    **dict.fromkeys(
        elsewhere.TOP,
        'a window of the same size ranks results: after windows of "1 hour" write '
        '.tumbling_window("1 hour").top_rows(3, "total"); for rows write .top_rows(3, "amount") instead of .agg(...)',
    ),
    "split": 'part results with .filter(...) for each part: one.filter("n > 3"), one.filter("n <= 3 OR n IS NULL")',
    "toPandas": "write .to_pandas()",
    "toDF": "write .to_dataframe()",
    "to_df": "write .to_dataframe()",
    "writeStream": "write .start(sink)",
}
"""After the aggregates."""


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


def said_of(draft: Draft) -> list[str]:
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
