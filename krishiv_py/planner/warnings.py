"""Define what a user should know before a plan is run."""

from __future__ import annotations

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec


def warnings(spec: OperatorSpec) -> tuple[str, ...]:
    """State that may grow without bound, and settings that can lose rows."""
    options = spec.options
    if not spec.time_column:
        return ()
    forgets = options.ttl is not None and (spec.operation.extent.numbered or spec.operation.nature.gives_rows)
    texts = [] if forgets else list(spec.operation.warnings())
    from_stage = bool(spec.arrives_by)  # whose results are never late, nor ahead
    by_clock = spec.watermark._by_clock  # so no row is late
    lag_us, tolerant = longest_lag_us(spec), options.allowed_lateness_us > 0
    if isinstance(spec.watermark, WatermarkSpec) and lag_us == 0 and not tolerant and not from_stage and not by_clock:
        texts.append("lag 0 and no allowed lateness: every row older than the newest of earlier batches is late")
    if isinstance(spec.watermark, MultiSourceWatermarkSpec) and not from_stage and not by_clock:
        several = len(spec.watermark.sources) + (spec.watermark.unknown_spec is not None) > 1
        if several and spec.watermark.idle_timeout_us is None:
            texts.append(
                "several sources and no idle time-out: one that falls silent holds the watermark, and with it all results; "
                'set idle_timeout="30 s"'
            )
    if not from_stage and not by_clock and lag_us >= options.future_us and options.future_reference == "watermark":
        enough = show_us(lag_us + options.future_us)
        texts.append(
            f"the lag ({show_us(lag_us)}) is not below the future tolerance ({show_us(options.future_us)}): rows "
            f'that come in order count as future; write future_tolerance("{enough}")'
        )
    refuses = options.future_action != "warn"
    if options.future_reference == "watermark" and (refuses or not (from_stage or by_clock)):
        fate = "would be refused, for refused rows do not move the watermark" if refuses else "counts as future"
        texts.append(
            f"future rows are classified by the watermark: after a lull longer than {show_us(options.future_us)}, and in a "
            f'catch-up batch of more time, every row {fate}; use reference="clock"'
        )
    waits = options.emit_mode == "final" and spec.operation.handled != "results"
    if waits and (options.trigger != Trigger() or options.accumulation == "discarding"):
        texts.append("emit=final writes one row per window: trigger and accumulation have no effect")
    if options.ttl is not None:
        forgotten = spec.operation.forgets_early(options.ttl.ttl_us, options.allowed_lateness_us)
        texts += [f"the state TTL ({show_us(options.ttl.ttl_us)}) is {forgotten}"] if forgotten else []
    if waits and options.allowed_lateness_us > 0 and spec.operation.unwaiting() is None:
        texts.append(f"emit=final waits for the allowed lateness: results come {show_us(options.allowed_lateness_us)} later")
    return tuple(texts)


def longest_lag_us(spec: OperatorSpec) -> int:
    """The longest lag of a source, µs."""
    if isinstance(spec.watermark, WatermarkSpec):
        return spec.watermark.lag_us
    return max(source.lag_us for _, source in spec.watermark.sources)
