"""Why a window has not fired, in words."""

from __future__ import annotations

from collections.abc import Collection

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET, show_instant, show_us
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec


def why_not_fired(
    spec: OperatorSpec, watermark_us: int, sources_us: dict[str, int], end_us: int, idle: Collection[str] | None = None
) -> str:
    """Say what a window that ends at `end_us` is waiting for.

    Parameters
    ----------
    spec : OperatorSpec
        The checked plan.
    watermark_us : int
        The watermark in force, µs.
    sources_us : dict
        The watermark of every source, µs; empty for a single source.
    end_us : int
        End of the window, µs since the epoch.
    idle : collection of str, optional
        Sources silent for longer than the idle time-out; None where nobody knows.
    """
    unwaiting = spec.window.unwaiting()
    if unwaiting is not None:
        return unwaiting
    odd = spec.window.no_end(end_us)
    if odd is not None:
        return odd
    final = spec.options.emit_mode == "final"
    waits = spec.options.allowed_lateness_us if final else 0
    # both bounds of these belong to the window, so the watermark must be past the end
    past_us = spec.tick_us if spec.window.inclusive else 0
    needed = end_us + waits + past_us
    window = f"the window that ends at {show_instant(end_us)}"
    if not spec.options.trigger.on_time and not final:
        return f"{window} does not wait for the watermark: its trigger fires {spec.options.trigger.describe()}"
    if watermark_us >= needed:
        return (
            f"{window} does not wait: the watermark is {show_instant(watermark_us)}, so it has fired if a row of it was "
            "accepted in time. Where a result is missing, look at the late rows."
        )
    extra = f" (its end and the allowed lateness of {show_us(waits)}, for emit is final)" if waits else ""
    text = f"{window} fires when the watermark reaches {show_instant(needed)}{extra}; it is {show_instant(watermark_us)}."
    return f"{text} {_holder(spec, watermark_us, sources_us, needed, idle)}"


def _holder(
    spec: OperatorSpec, watermark_us: int, sources_us: dict[str, int], needed: int, idle: Collection[str] | None
) -> str:
    if spec.watermark.by_clock:
        return "It is the clock of the machine, and goes on without rows."
    if not isinstance(spec.watermark, MultiSourceWatermarkSpec):
        newest = show_instant(needed + spec.watermark.lag_us)
        text = f"A row with event time {newest} or later, an explicit advance, or the end of input moves it there."
        return text + _clock(spec, watermark_us)
    mark = spec.watermark
    new_us = 0 if mark.unknown_spec is None else mark.unknown_spec.lag_us
    lags = {name: s.lag_us for name, s in mark.sources}
    known = sources_us or dict.fromkeys(lags, UNSET)
    silent = set(idle or ()) & known.keys()
    all_silent = bool(silent) and len(silent) == len(known)
    behind = {name: at for name, at in known.items() if at < needed and (all_silent or name not in silent)}
    parts = []
    for name, at in sorted(behind.items()):
        said = "has not spoken" if at == UNSET else f"is at {show_instant(at)}"
        parts.append(f"source {name!r} {said} and needs a row at {show_instant(needed + lags.get(name, new_us))} or later")
    return "; ".join([*parts, _silence(mark, silent, all_silent)]) + "." + _clock(spec, watermark_us)


def _clock(spec: OperatorSpec, watermark_us: int) -> str:
    """What idle_advance does about it."""
    after_us = spec.watermark.idle_advance_us
    if after_us is None:
        return ""
    if watermark_us == UNSET:
        return " It goes on with the clock in a lull, but not before it was set by a first row."
    return f" It also goes on with the clock, when no row has come for {show_us(after_us)} of processing time."


def _silence(mark: MultiSourceWatermarkSpec, silent: set[str], all_silent: bool) -> str:
    if mark.idle_timeout_us is None:
        return "there is no idle time-out"
    longer = f"silent for longer than {show_us(mark.idle_timeout_us)}"
    if all_silent:
        return f"all sources are {longer}, so the watermark holds until one speaks"
    out = f" ({', '.join(map(repr, sorted(silent)))} at the moment)" if silent else ""
    return f"a source {longer} is left out{out} while another one speaks; when all are silent the watermark holds"
