"""Option steps shared by the keyed, windowed and aggregated stages."""

from __future__ import annotations

import attrs
from typing_extensions import Self

from krishiv_py.errors import PlanError, message, shown
from krishiv_py.plan.checks import a_number, one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.query import (
    EmitMode,
    FutureAction,
    FutureReference,
    LateRule,
    NullKeys,
    QueryOptions,
    StateTtlConfig,
)
from krishiv_py.plan.options.triggers import Accumulation, Trigger


class OptionMethods:
    """Each step returns a new stage; the old one stays as it was."""

    __slots__ = ()

    @property
    def options(self) -> QueryOptions:
        """The options in force."""
        raise NotImplementedError

    def _with_options(self, options: QueryOptions) -> Self:
        raise NotImplementedError

    def _with_handler(self, handler: LateEventHandler) -> Self:
        raise NotImplementedError

    def allowed_lateness(self, lateness: Duration) -> Self:
        """Accept rows up to `lateness` behind the watermark; windows stay in state that much longer (SEMANTICS §4.2)."""
        return self._with_options(attrs.evolve(self.options, allowed_lateness_us=to_us(lateness, "lateness", allow_zero=True)))

    def late_rule(self, rule: LateRule) -> Self:
        """Judge rows by `rule` (SEMANTICS §4.2).

        Parameters
        ----------
        rule : {"event", "window"}
            By their own time (default), or by whether all their windows are over.
        """
        one_of(rule, "rule", ("event", "window"))
        return self._with_options(attrs.evolve(self.options, late_rule=rule))

    def null_keys(self, where: NullKeys) -> Self:
        """Say `where` null keys go: a ``"group"`` of their own (default), or the ``"side_output"`` (SEMANTICS §1.3)."""
        one_of(where, "where", ("group", "side_output"))
        return self._with_options(attrs.evolve(self.options, null_keys=where))

    def emit(self, mode: EmitMode) -> Self:
        """Choose the output `mode` (SEMANTICS §5.4).

        Parameters
        ----------
        mode : {"final", "updates", "retractions"}
            One row per window when nothing can change it any more; the new value at each firing; or a change log whose
            column ``op`` withdraws what stood. By default ``"final"``, and ``"updates"`` once more than one firing is possible.
        """
        one_of(mode, "mode", ("final", "updates", "retractions"))
        return self._with_options(attrs.evolve(self.options, emit=mode))

    def trigger(self, trigger: Trigger) -> Self:
        """Choose by `trigger` when windows fire (SEMANTICS §5.1 to §5.3).

        Parameters
        ----------
        trigger : Trigger
            ``Trigger.on_watermark()`` (default), ``.on_every_element()``, ``.on_count(n)``, ``.on_interval(d)``, or early,
            on-time and late firings one by one.
        """
        if not isinstance(trigger, Trigger):
            raise PlanError(
                message(
                    "not a Trigger",
                    shown(trigger),
                    "it is not known when windows fire",
                    "pass Trigger.on_count(100) or another",
                )
            )
        return self._with_options(attrs.evolve(self.options, trigger=trigger))

    def accumulation(self, mode: Accumulation) -> Self:
        """Set by `mode` what a firing gives: all of the window (``"accumulating"``), or what is new (``"discarding"``)."""
        one_of(mode, "mode", ("accumulating", "discarding"))
        return self._with_options(attrs.evolve(self.options, accumulation=mode))

    def with_pane(self) -> Self:
        """Add the columns ``pane_timing`` and ``pane_index`` to results (SEMANTICS §5.5).

        The timing is ``early``, ``on_time`` or ``late`` (``final`` with ``emit("final")``). The index is the zero-based number
        of the firing of the key and window; a withdrawal has that of the firing it is part of.
        """
        return self._with_options(attrs.evolve(self.options, pane=True))

    def future_tolerance(
        self, tolerance: Duration, action: FutureAction = "warn", reference: FutureReference | None = None
    ) -> Self:
        """What becomes of rows further ahead than `tolerance` (SEMANTICS §4.4).

        Parameters
        ----------
        tolerance : int or timedelta or str
            How far ahead is still normal; ``int`` is milliseconds; 60 s unless set.
        action : {"warn", "drop", "side_output"}
            Process and count them, drop and count them, or hand them to the late handler with reason ``future``. With the
            last two such a row does not move the watermark.
        reference : {"watermark", "clock"}, optional
            Ahead of what; the clock by default for ``"drop"`` and ``"side_output"``, else the watermark.
        """
        one_of(action, "action", ("warn", "drop", "side_output"))
        chosen = reference if reference is not None else ("watermark" if action == "warn" else "clock")
        one_of(chosen, "reference", ("watermark", "clock"))
        future_us = to_us(tolerance, "tolerance", allow_zero=True)
        return self._with_options(
            attrs.evolve(self.options, future_us=future_us, future_action=action, future_reference=chosen)
        )

    def max_listed(self, values: int) -> Self:
        """Let the lists of one key hold so many `values` together in one step, instead of 50 million (docs/costs.md).

        Look-back and distinct-set windows of w rows give lists of w² values for w rows, and ``pairs()`` looks at as many pairs.
        More than this is an error that names the key, before it fills the memory.

        Parameters
        ----------
        values : int
            From 1.
        """
        most = a_number(values, "values", 1, "write .max_listed(100_000_000)", most=(1 << 62))
        return self._with_options(attrs.evolve(self.options, max_listed=most))

    def with_state_ttl(self, config: StateTtlConfig) -> Self:
        """Drop, and count, state of keys untouched for the time that `config` sets (SEMANTICS §6.1)."""
        if not isinstance(config, StateTtlConfig):
            raise PlanError(
                message(
                    "not a StateTtlConfig", shown(config), "no time to live is known", "pass StateTtlConfig(ttl_ms=3_600_000)"
                )
            )
        return self._with_options(attrs.evolve(self.options, ttl=config))

    def with_late_event_handler(self, handler: LateEventHandler) -> Self:
        """Hand late rows to `handler` instead of only counting them (SEMANTICS §4.3)."""
        if isinstance(handler, type) or not isinstance(handler, LateEventHandler):
            raise PlanError(
                message(
                    "not a LateEventHandler",
                    shown(handler),
                    "late rows would be lost",
                    "pass an instance with `wants` and `handle(late)`",
                )
            )
        one_of(handler.wants, "wants", ("rows", "keys", "count"))
        return self._with_handler(handler)
