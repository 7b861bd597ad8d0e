"""The switches of five systems, each in one word (SEMANTICS §3 to §5)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from krishiv_py.plan.options.query import EmitMode, LateRule, QueryOptions, SessionTouch

PresetName: TypeAlias = Literal["krishiv", "ripple", "spl", "kip450", "flink"]


@attrs.frozen
class Preset:
    """What a system does where others differ.

    Attributes
    ----------
    allowed_lateness_us : int
        How long windows take late rows, µs.
    late_rule, emit, touch, pane
        As in :class:`~krishiv_py.plan.options.query.QueryOptions`.
    initial_us : int or None
        Where its watermark starts, µs; None leaves that as it is.
    """

    allowed_lateness_us: int = 0
    late_rule: LateRule = "event"
    emit: EmitMode | None = None
    touch: SessionTouch = "separate"
    pane: bool = False
    initial_us: int | None = None

    def apply(self, options: QueryOptions) -> QueryOptions:
        """The options with these switches set, all others kept."""
        return attrs.evolve(
            options,
            allowed_lateness_us=self.allowed_lateness_us,
            late_rule=self.late_rule,
            emit=self.emit,
            touch=self.touch,
            pane=self.pane,
        )


PRESETS: Final[dict[str, Preset]] = {
    # rows behind the watermark are late and counted, one result per window, sessions at exactly the gap are two
    "krishiv": Preset(),
    # 60 s of lateness, a correction is a retraction and an emission, the tracker starts at 0
    "ripple": Preset(allowed_lateness_us=60_000_000, emit="retractions", initial_us=0),
    # a row is late by its own time, every firing tells its timing and index
    "spl": Preset(emit="updates", pane=True),
    # final results only; a record is late when all its windows are over
    "kip450": Preset(late_rule="window", emit="final", touch="merge"),
    # late only when all windows of a row are over; sessions that touch are one
    "flink": Preset(late_rule="window", touch="merge"),
}
