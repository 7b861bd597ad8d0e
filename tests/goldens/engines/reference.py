"""The plain reference of ``tests/reference`` as an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tests import reference as ref
from tests.goldens.cases import Case, Key, LateRow, Result, Step, Trigger, Window, Written
from tests.goldens.engines import Observed
from tests.reference.run import Kind

OURS: Mapping[str, str] = {"session_touch": "merge", "all_idle": "hold"}  # the rest is the corpus's default


class ReferenceEngine:
    """Runs cases on either side of every dialect knob; the goldens themselves bind one side."""

    def __init__(self, turned: Mapping[str, str] | None = None) -> None:
        """``turned``: dialect knobs that differ from this project's side."""
        self._dialect = {**OURS, **(turned or {})}

    def run(self, case: Case) -> Observed:
        """The run, in the goldens' terms. A restart changes nothing (§6.3), so none is made."""
        seen = ref.Reference(self._config(case)).run([_step(s) for s in case.steps])
        return Observed(
            written=[Written(e.step, e.op, e.pane, _result(e.result)) for e in seen.emissions],
            late=[_late(late) for late in seen.late if late.reason != "null_time"],
            watermark_after_ms=[None if w == ref.model.UNSET else int(w) for w in seen.watermark_after],
            null_ts_dropped=sum(late.reason == "null_time" for late in seen.late),
            unassigned=len(seen.unassigned),
        )

    def _config(self, case: Case) -> ref.Config:
        return ref.Config(
            window=self._window(case.window),
            watermark=self._watermark(case),
            allowed_lateness=case.allowed_lateness_ms,
            late_rule="window",
            emit=case.emit,
            trigger=_trigger(case.trigger),
        )

    def _window(self, window: Window) -> Kind:
        if window.kind == "session":
            return ref.Session(
                window.need("gap_ms"),
                window.max_duration_ms,
                touch="merge" if self._dialect["session_touch"] == "merge" else "separate",
                session_late="own" if self._dialect.get("session_late") == "own" else "merged",
            )
        if window.kind == "time_interval":
            return ref.Intervals(window.need("lower_ms"), window.need("upper_ms"), window.probes_ms)
        size = window.need("size_ms")
        if window.kind == "sliding_kafka":
            return ref.DistinctSet(size, clamp_zero=window.clamp_zero)
        if window.kind == "sliding_event":
            return ref.LookBack(size, window.two_sided, window.with_row, window.exclude_self, window.on_arrival)
        return ref.Fixed(size, window.need("slide_ms") if window.kind == "hopping" else None, window.offset_ms)

    def _watermark(self, case: Case) -> ref.WatermarkSpec:
        spec = case.watermark
        zero = self._dialect.get("initial_watermark") == "zero"
        return ref.WatermarkSpec(
            lag=spec.lag_ms or 0,
            sources=spec.sources,
            initial=0 if zero else spec.initial_ms,
            idle_timeout=spec.idle_timeout_ms,
            idle_advance=spec.idle_advance_ms,
            start_now=spec.start_now_ms,
            policy=spec.policy,
            all_idle="hold" if self._dialect["all_idle"] == "hold" else "max",
            idle_resume="align" if self._dialect.get("idle_resume") == "align" else "hold",
        )


def make() -> ReferenceEngine:
    """The engine on this project's side of the dialect."""
    return ReferenceEngine()


def _trigger(trigger: Trigger | None) -> ref.Trigger:
    if trigger is None:
        return ref.Trigger()
    return ref.Trigger(trigger.early, trigger.on_time, trigger.late, trigger.accumulation)


def _step(step: Step) -> ref.Step:
    if step.advance_watermark_ms is not None:
        return ref.Advance(step.advance_watermark_ms, step.source, step.now_ms)
    rows = [ref.Row(r.key, r.ts_ms, r.value, r.gap_ms, r.source) for r in step.batch]
    return ref.Batch(rows, step.now_ms)


def _result(result: ref.Result) -> Result:
    values = tuple(v for v in result.values if v is not None)
    low, high, total = (min(values), max(values), sum(values)) if values else (None, None, None)
    key = cast(Key, result.key)
    return Result(key, result.start, result.end, len(result.values), total, low, high, values, result.row)


def _late(late: ref.Late) -> LateRow:
    return LateRow(late.step, cast(Key, late.row.key), late.row.t, late.row.value, late.reason)
