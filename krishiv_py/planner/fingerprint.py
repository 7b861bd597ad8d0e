"""Define what of a plan its state depends on (SEMANTICS §6.4; the whole table is in docs/state.md)."""

from __future__ import annotations

from typing import Final

from krishiv_py.failures.redaction import noted
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.durations import UNSET, show_us
from krishiv_py.plan.options.triggers import CustomTrigger
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec

STATE_PART: Final = "field of state "
"""With this the names of parts begin that say which fields a user's state has."""


def fingerprint(spec: OperatorSpec) -> dict[str, str]:
    """Return the parts of a plan that its state cannot follow when they change.

    Stateless steps, names of outputs, the watermark's lag, sinks and late handlers may change between runs.
    """
    layout = Layout(spec)
    window = spec.operation
    parts = {"window kind": window.kind, "time column": spec.time_column, "time column type": spec.time_kind}
    parts |= {f"window {name}": text for name, text in window.identity().items()}
    if window.nature.keeps_carried:
        parts |= {f"column {f.name} of the result": str(f.type) for f in layout.own_fields}
    parts |= {f"{STATE_PART}{field.name}": str(field.type) for field in window.state_fields}
    parts |= {f"key {i + 1}": f"{k} {t}" for i, (k, t) in enumerate(zip(spec.keys, layout.key_types, strict=True))}
    parts |= {
        f"aggregate {i + 1}": f"{k.noted(c.func)}({c.arg!r}) where {_where(c)} -> {', '.join(map(str, k.partial_types))}"
        for i, (c, k) in enumerate(zip(spec.aggs, layout.kernels, strict=True))
    }
    if spec.changes:
        keeps_totals = layout.takes_back and (spec.options.ttl is None or not spec.aggs)
        parts["rows that are withdrawn"] = "taken off totals" if keeps_totals else "taken out of rows that are kept"
        if window.nature.opens_windows:
            parts["rows that are withdrawn"] = "taken out of rows of windows that are kept"
    if spec.watermark._by_clock:
        parts["time"] = "of the clock"
    parts["emit"] = spec.options.emit_mode
    parts |= _times(spec)
    parts |= _firings(spec)
    if uses_ledger(spec):  # what was due under one clock would never be under the other
        parts["clock"] = "the driver's ledger (several sources, idle time-outs, intervals, wall-clock TTL)"
    return {name: noted(value) for name, value in parts.items()}


def _times(spec: OperatorSpec) -> dict[str, str]:
    """Return what decides which rows, windows and keys are over: what is over has left state.

    With a larger lateness windows that have left would be made again from late rows alone; with a smaller one windows that wait
    for their only result would leave without it.
    """
    options = spec.options
    parts = {"allowed lateness in µs": str(options.allowed_lateness_us)}
    if spec.watermark.initial_us != UNSET:  # a lower one would move the watermark back
        parts["watermark's start in µs"] = str(spec.watermark.initial_us)
    if spec.source_column is not None:  # maxima are kept by its values
        parts["source column"] = spec.source_column
    if spec.operation.late_by == "state":  # by windows, only state knows which rows are late
        parts["late rule"] = options.late_rule
    if options.ttl is not None:  # of keys that came without one, nobody noted when they were last touched
        parts["time to live"] = f"by {options.ttl._measured} time"
    return parts


def _where(call: AggCall) -> str:
    """Return which rows of a window count: those of its filter, in a range of its own."""
    return f"{call.where!r}" if call.over_us is None else f"{call.where!r} over {call.over_us} µs"


def uses_ledger(spec: OperatorSpec) -> bool:
    """Return whether a plan needs more than Spark's clock."""
    ttl = spec.options.ttl
    return (
        isinstance(spec.watermark, MultiSourceWatermarkSpec)
        or spec.watermark.idle_advance_us is not None
        or spec.watermark._by_clock
        or spec.watermark.by_row
        or spec.operation.by_clock
        or spec.options.trigger._period_us is not None
        or (ttl is not None and ttl.clock == "processing")
    )


def _firings(spec: OperatorSpec) -> dict[str, str]:
    """Return how windows that fire often keep their state: a log of firings or whole rows instead of plain partials."""
    options, early = spec.options, spec.options.trigger.early
    plainly = spec.operation.fires_plainly(options)
    parts = {}
    if isinstance(early, CustomTrigger) and (spec.operation.nature.fires_anyway or not plainly):
        parts["trigger"] = early.noted()  # what it reads of windows is counted in state
    if plainly:
        return parts
    parts["firings"] = f"{'totals' if spec.operation.sums else 'logged'}, {options.accumulation}"
    grid = spec.operation.extent.grid
    if grid is not None and grid.slide_us < grid.size_us and not spec.operation.extent.numbered:
        parts["firings hold"] = "rows by slice" if options.trigger._at_ends else "rows by window"
    if spec.operation.extent.numbered:
        parts["trigger"] = options.trigger._describe()  # what was written is known from row numbers and the trigger
    return parts


def differences(stored: dict[str, str], mine: dict[str, str]) -> list[str]:
    """Return what changed, in words."""
    changed = []
    for part in sorted(stored.keys() | mine.keys()):
        was, now = noted(stored.get(part, "(none)")), mine.get(part, "(none)")
        if was != now:
            was, now = _plainly(was, now) if "aggregate " in part else (was, now)
            changed.append(changed_part(part, was, now))
    return changed


def changed_part(part: str, was: str, now: str) -> str:
    """Return what a part was and is, in words; lengths as people write them."""
    if part.endswith("_us"):
        part = part.removesuffix("_us")
        was, now = (show_us(int(text)) if text.lstrip("-").isdigit() else text for text in (was, now))
    return f"{part} was {was} and is {now}"


def _plainly(was: str, now: str) -> tuple[str, str]:
    """Return two aggregates without the types of their parts, where they differ in more than these."""
    old, new = (text.replace(" where None", "") for text in (was, now))
    short = (old.partition(" -> ")[0], new.partition(" -> ")[0])
    return short if short[0] != short[1] else (old, new)
