"""The options of a windowed query: lateness, keys, TTL, triggers, emission."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from krishiv_py.deprecation import deprecated
from krishiv_py.errors import CallError, shown
from krishiv_py.plan.checks import one_of
from krishiv_py.plan.durations import UNSET, Duration, show_us, to_us
from krishiv_py.plan.options.triggers import Accumulation, Trigger

LateRule: TypeAlias = Literal["event", "window"]
NullKeys: TypeAlias = Literal["group", "side_output"]
FutureAction: TypeAlias = Literal["warn", "drop", "side_output"]
FutureReference: TypeAlias = Literal["watermark", "clock"]
LateWatermark: TypeAlias = Literal["batch", "batch_before"]
SessionTouch: TypeAlias = Literal["separate", "merge"]
EmitMode: TypeAlias = Literal["final", "updates", "retractions"]
DEFAULT_FUTURE_US = 60_000_000
MAX_LISTED = 50_000_000
"""How many values the lists of one key may hold together in one step, unless ``max_listed`` says otherwise."""


@attrs.frozen(init=False)
class StateTtlConfig:
    """Drops and counts the state of a key without new rows for a time to live (SEMANTICS §6.1).

    Parameters
    ----------
    ttl : int or timedelta or str
        Time to live, positive; ``int`` is milliseconds. `ttl_ms` is Krishiv's name for it.
    clock : {"event", "processing"}
        Whether the watermark or the wall clock measures it.
    """

    ttl: Duration = attrs.field()
    clock: Literal["event", "processing"] = attrs.field(default="event")

    @ttl.validator
    def _positive(self, _attribute: object, value: Duration) -> None:
        to_us(value, "ttl")

    @clock.validator
    def _known(self, _attribute: object, value: str) -> None:
        one_of(value, "clock", ("event", "processing"))

    def __init__(
        self, ttl: Duration | None = None, clock: Literal["event", "processing"] = "event", *, ttl_ms: Duration | None = None
    ) -> None:
        given = ttl_ms if ttl is None else ttl
        if given is None or (ttl is not None and ttl_ms is not None):
            got = "none" if ttl is None else f"ttl={shown(ttl)}, ttl_ms={shown(ttl_ms)}"
            raise CallError("StateTtlConfig takes one time to live", got=got, hint='write StateTtlConfig(ttl="1 hour")')
        if ttl is None:
            deprecated("StateTtlConfig(ttl_ms=...)", "StateTtlConfig(ttl=...)")
        self.__attrs_init__(given, clock)

    @property
    def ttl_ms(self) -> Duration:
        """See `ttl`."""
        deprecated("StateTtlConfig.ttl_ms", "StateTtlConfig.ttl")
        return self.ttl

    @property
    def ttl_us(self) -> int:
        """The time to live in microseconds."""
        return to_us(self.ttl, "ttl")


@attrs.frozen
class QueryOptions:
    """Everything about a windowed query that is neither keys, window nor aggregates."""

    allowed_lateness_us: int = 0
    late_rule: LateRule = "event"
    null_keys: NullKeys = "group"
    future_us: int = DEFAULT_FUTURE_US
    ttl: StateTtlConfig | None = None
    emit: EmitMode | None = None
    trigger: Trigger = attrs.field(factory=Trigger)
    accumulation: Accumulation = "accumulating"
    pane: bool = False
    future_action: FutureAction = "warn"
    future_reference: FutureReference = "clock"
    late_watermark: LateWatermark = "batch"
    """Which watermark says that a row is late: that of its batch, or that of the batch before (SEMANTICS §4.6)."""
    max_listed: int = MAX_LISTED
    named: str | None = None
    """The name of the stage, by which its state is found again (SEMANTICS §12.2)."""
    left_us: int = UNSET
    """Windows that end up to here have left for ever, whatever the allowed lateness is now (SEMANTICS §12.3)."""

    @property
    def late_by_batch_before(self) -> bool:
        """Return whether rows are judged by the watermark of the batch before, as Structured Streaming does (SEMANTICS
        §4.6).
        """
        return self.late_watermark == "batch_before"

    @property
    def state_refuses(self) -> bool:
        """Return whether rows of merging windows are late by the window they end up in, which only the state knows."""
        return (self.late_rule == "window" and not self.late_by_batch_before) or self.left_us != UNSET

    @property
    def fires_by_default(self) -> bool:
        """Return whether trigger and accumulation are the default ones, or make no difference."""
        plain = self.trigger == Trigger() and self.accumulation == "accumulating"
        return plain or self.emit_mode == "final"

    @property
    def fires_once(self) -> bool:
        """Return whether every window has its default firings, and nothing is asked about them."""
        return self.emit_mode == "final" or (self.fires_by_default and not self.pane)

    @property
    def emit_mode(self) -> EmitMode:
        """The mode in force: ``final``, or ``updates`` once more than one firing is possible (SEMANTICS §5.4)."""
        if self.emit is not None:
            return self.emit
        often = self.allowed_lateness_us > 0 or self.trigger.early is not None
        return "updates" if often or self.accumulation == "discarding" else "final"

    def describe(self) -> str:
        """One line for ``explain()``."""
        parts = [f"late_rule={self.late_rule}", f"emit={self.emit_mode}"]
        if self.late_by_batch_before:
            parts.append("late_watermark=batch_before")
        if self.allowed_lateness_us:
            parts.append(f"allowed_lateness={show_us(self.allowed_lateness_us)}")
        if self.trigger != Trigger():
            parts.append(f"trigger: {self.trigger._describe()}")
        if self.accumulation != "accumulating":
            parts.append(f"accumulation={self.accumulation}")
        if self.future_action != "warn":
            ahead = f"{show_us(self.future_us)} ahead of the {self.future_reference}"
            parts.append(f"future_tolerance={ahead}: {self.future_action}")
        if self.null_keys != "group":
            parts.append(f"null_keys={self.null_keys}")
        if self.ttl:
            parts.append(f"ttl={show_us(self.ttl.ttl_us)} ({self.ttl.clock} time)")
        if self.max_listed != MAX_LISTED:
            parts.append(f"max_listed={self.max_listed}")
        return ", ".join(parts)
