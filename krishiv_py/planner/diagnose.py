"""Why a window has not fired, in words."""

from __future__ import annotations

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET, show_instant, show_us
from krishiv_py.plan.watermarks import MultiSourceWatermarkSpec


def why_not_fired(spec: OperatorSpec, watermark_us: int, sources_us: dict[str, int], end_us: int) -> str:
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
    """
    waits = spec.options.allowed_lateness_us if spec.options.emit_mode == "final" else 0
    needed = end_us + waits
    window = f"the window that ends at {show_instant(end_us)}"
    if watermark_us >= needed:
        return (f"{window} is over: the watermark is {show_instant(watermark_us)}. Without a result it had no accepted row; "
                "look at the late rows.")
    extra = f" (its end and the allowed lateness of {show_us(waits)}, for emit is final)" if waits else ""
    text = f"{window} fires when the watermark reaches {show_instant(needed)}{extra}; it is {show_instant(watermark_us)}."
    return f"{text} {_holder(spec, sources_us, needed)}"


def _holder(spec: OperatorSpec, sources_us: dict[str, int], needed: int) -> str:
    if not isinstance(spec.watermark, MultiSourceWatermarkSpec):
        newest = show_instant(needed + spec.watermark.lag_us)
        return f"A row with event time {newest} or later, an explicit advance, or the end of input moves it there."
    lags = {name: s.lag_us for name, s in spec.watermark.sources}
    behind = {name: at for name, at in sources_us.items() if at < needed}
    if not behind:
        behind = dict.fromkeys(lags, UNSET)
    parts = []
    for name, at in sorted(behind.items()):
        said = "has not spoken" if at == UNSET else f"is at {show_instant(at)}"
        parts.append(f"source {name!r} {said} and needs a row at {show_instant(needed + lags.get(name, 0))} or later")
    idle = spec.watermark.idle_timeout_us
    rest = "there is no idle time-out" if idle is None else f"a source silent for longer than {show_us(idle)} is left out"
    return "; ".join([*parts, rest]) + "."

