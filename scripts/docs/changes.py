"""The table of what becomes of state when a plan changes: ``python -m scripts.docs.changes`` writes it into the docs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

import krishiv_py as kv
from krishiv_py import KrishivError, SlidingWindows, StateTtlConfig, Trigger, WatermarkSpec, count
from krishiv_py.planner.evolution import compared
from krishiv_py.planner.explain import outline_of
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.beginning import reasons_against
from krishiv_py.testing import stream_of, union_of
from krishiv_py.types import type_text

PAGE: Final = Path(__file__).parents[2] / "docs" / "savepoints.md"
BEGIN: Final = "<!-- made by scripts/docs/changes.py -->\n"
END: Final = "<!-- end of what is made -->\n"

Step = Callable[[Any], Any]


@attrs.frozen
class Origin:
    """Makes the streams of a plan: by columns and name, and several as one."""

    stream: Callable[[str, str], Any] = lambda columns, name: stream_of(columns)
    union: Callable[[dict[str, Any]], Any] = union_of


Made = Callable[[Any, Origin], Any]
OF_TESTS: Final = Origin()
N: Final = count().alias("n")
TOTAL: Final = kv.sum("v").alias("total")


def _joined(stream: Any, lower: str, origin: Origin) -> Any:
    other = origin.stream(f"k {type_text(stream.schema.field('k').type)}, seen bigint", "others")
    return stream.key_by("k").interval_join(other.watermark("seen", "5 s").key_by("k"), lower=lower, upper="1 minute")


def _operators(size: str, gap: str, rows: int) -> dict[str, Made]:
    return {
        "tumbling": lambda s, _: s.key_by("k").tumbling_window(size),
        "hopping": lambda s, _: s.key_by("k").hopping_window(size, "15 s"),
        "cumulate": lambda s, _: s.key_by("k").cumulate_window("15 s", size),
        "session": lambda s, _: s.key_by("k").session_window(gap),
        "capped session": lambda s, _: s.key_by("k").session_window(gap, max_duration="1 hour"),
        "look-back": lambda s, _: s.key_by("k").lookback_window(size),
        "distinct-set": lambda s, _: s.key_by("k").windowed_by(SlidingWindows.of(size)),
        "count": lambda s, _: s.key_by("k").count_window(rows),
        "deduplication": lambda s, _: s.drop_duplicates("k", within=size),
        "interval join": lambda s, origin: _joined(s, f"-{size}", origin),
    }


OPERATORS: Final = _operators("1 minute", "30 s", 10)
SIZED: Final = _operators("2 minutes", "40 s", 11)


def made(
    operator: str,
    *,
    aggs: tuple[Any, ...] = (N, TOTAL),
    types: str = "k int, at bigint, v int",
    step: Step = lambda s: s,
    timed: Step = lambda s: s.watermark("at", "5 s"),
    source: Made = lambda s, _: s,
    sized: bool = False,
    origin: Origin = OF_TESTS,
) -> Any:
    """Return the stage of an operator with something changed."""
    rows = step(timed(source(origin.stream(types, "events"), origin)))
    stage = (SIZED if sized else OPERATORS)[operator](rows, origin)
    return stage if isinstance(stage, kv.ResultStream) else stage.agg(*aggs)


def _both(step: Step, to: Step) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"step": step}, {"step": to}


def _sources(stream: Any, origin: Origin) -> Any:
    return origin.union({"a": stream, "b": origin.stream("k int, at bigint, v int", "b")})


def _by_source(stream: Any) -> Any:
    several = kv.MultiSourceWatermarkSpec.new()
    for name in ("a", "b"):
        several = several.source(name, WatermarkSpec.fixed_lag("5 s"))
    return stream.with_watermark(several, "at", source_column="source")


CHANGES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "an aggregate added": ({"aggs": (N,)}, {"aggs": (N, TOTAL)}),
    "an aggregate removed": ({"aggs": (N, TOTAL)}, {"aggs": (N,)}),
    "aggregates renamed": ({"aggs": (N,)}, {"aggs": (count().alias("rows"),)}),
    "aggregates in another order": ({"aggs": (N, TOTAL)}, {"aggs": (TOTAL, N)}),
    "values `int` to `bigint`": ({}, {"types": "k int, at bigint, v bigint"}),
    "key `int` to `bigint`": ({}, {"types": "k bigint, at bigint, v int"}),
    "key `int` to `string`": ({}, {"types": "k string, at bigint, v int"}),
    "larger lateness, final results": _both(lambda s: s.emit("final"), lambda s: s.allowed_lateness("1 minute").emit("final")),
    "smaller lateness, final results": _both(lambda s: s.allowed_lateness("1 minute").emit("final"), lambda s: s.emit("final")),
    "other lateness, updates": _both(
        lambda s: s.allowed_lateness("1 minute").emit("updates"), lambda s: s.allowed_lateness("5 s").emit("updates")
    ),
    "late rule": _both(lambda s: s, lambda s: s.late_rule("window")),
    "final results to updates": _both(lambda s: s.emit("final"), lambda s: s.emit("updates")),
    "updates to final results": _both(lambda s: s.emit("updates"), lambda s: s.emit("final")),
    "updates to retractions": _both(lambda s: s.emit("updates"), lambda s: s.emit("retractions")),
    "time to live added": _both(lambda s: s, lambda s: s.with_state_ttl(StateTtlConfig("1 day"))),
    "time to live removed": _both(lambda s: s.with_state_ttl(StateTtlConfig("1 day")), lambda s: s),
    "time to live by another clock": _both(
        lambda s: s.with_state_ttl(StateTtlConfig("1 day")), lambda s: s.with_state_ttl(StateTtlConfig("1 day", "processing"))
    ),
    "time to live of another length": _both(
        lambda s: s.with_state_ttl(StateTtlConfig("1 day")), lambda s: s.with_state_ttl(StateTtlConfig("2 days"))
    ),
    "trigger added": _both(lambda s: s.emit("updates"), lambda s: s.emit("updates").trigger(Trigger.on_count(2))),
    "trigger removed": _both(lambda s: s.emit("updates").trigger(Trigger.on_count(2)), lambda s: s.emit("updates")),
    "another count of a trigger": _both(
        lambda s: s.emit("updates").trigger(Trigger.on_count(2)), lambda s: s.emit("updates").trigger(Trigger.on_count(3))
    ),
    "accumulating to discarding": _both(
        lambda s: s.emit("updates").trigger(Trigger.on_count(2)),
        lambda s: s.emit("updates").trigger(Trigger.on_count(2)).accumulation("discarding"),
    ),
    "discarding to accumulating": _both(
        lambda s: s.emit("updates").trigger(Trigger.on_count(2)).accumulation("discarding"),
        lambda s: s.emit("updates").trigger(Trigger.on_count(2)),
    ),
    "another size, gap or range": ({}, {"sized": True}),
    "one source to several": ({}, {"source": _sources, "timed": _by_source}),
    "several sources to one": ({"source": _sources, "timed": _by_source}, {}),
}


def answer(operator: str, change: str) -> str:
    """Return what becomes of the state of an operator."""
    if operator in ("deduplication", "interval join") and ("aggregate" in change or "accumulating" in change):
        return "–"  # rows pass, and nothing is aggregated
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old, new = (_planned(made(operator, **case)) for case in CHANGES[change])
    except KrishivError:
        return "–"
    note = {"plan": old.fingerprint, "outline": outline_of(old)}
    changes = compared(note["outline"], outline_of(new))
    if any(change.loses for change in changes):
        return "reset"
    return "savepoint" if any(reasons_against(note, new, changes, on_spark=False)) else "in place"


def _planned(stage: Any) -> PhysicalPlan:
    plan: PhysicalPlan = stage._plan("streaming")
    return plan


def table() -> str:
    """Return the table."""
    lines = [f"| Change | {' | '.join(OPERATORS)} |", "|---" * (len(OPERATORS) + 1) + "|"]
    for name in CHANGES:
        cells = [answer(operator, name) for operator in OPERATORS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the table as it should be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
