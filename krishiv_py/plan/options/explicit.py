"""The options of a query that a user set; None where the user did not set one."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import attrs
from typing_extensions import Self

from krishiv_py.plan.options.query import (
    EmitMode,
    FutureAction,
    FutureReference,
    LateRule,
    LateWatermark,
    NullKeys,
    QueryOptions,
    SessionTouch,
    StateTtlConfig,
)
from krishiv_py.plan.options.triggers import Accumulation, Trigger

PresetName: TypeAlias = Literal["krishiv", "ripple", "spl", "kip450", "flink", "spark"]

PRESETS: Final[dict[str, dict[str, Any]]] = {
    # the defaults: rows before the watermark are late and counted, one result per window, sessions at exactly the gap are two
    "krishiv": {},
    # 60 s of lateness, a correction is a retraction and an emission, the tracker starts at 0, future rows are ahead of it
    "ripple": {
        "allowed_lateness_us": 60_000_000,
        "emit": "retractions",
        "initial_us": 0,
        "future_reference": "watermark",
    },
    # a row is late by its own time, every firing tells its timing and index
    "spl": {"emit": "updates", "pane": True},
    # final results only; a record is late when all its windows are over
    "kip450": {"late_rule": "window", "emit": "final", "touch": "merge"},
    # late only when all windows of a row are over; sessions that touch are one
    "flink": {"late_rule": "window", "touch": "merge"},
    # the same, but lateness is decided by the watermark of the batch before
    "spark": {"late_rule": "window", "touch": "merge", "late_watermark": "batch_before"},
}
"""The settings of each preset for options that the plan does not set, by the names of :class:`ExplicitOptions`."""


def preset_of(explicit: ExplicitOptions) -> ExplicitOptions:
    """Return the options, with those of their preset where the user set none."""
    return explicit.filled(**PRESETS[explicit.preset]) if explicit.preset is not None else explicit


_ELSEWHERE = ("preset", "touch", "initial_us")


@attrs.frozen
class ExplicitOptions:
    """:class:`~krishiv_py.plan.options.query.QueryOptions` with None where the user set nothing.

    Attributes
    ----------
    preset : str or None
        The system whose settings are used where the user set nothing.
    touch : {"separate", "merge"} or None
        What sessions without a rule of their own do when they touch.
    initial_us : int or None
        Where a watermark without a start of its own begins, µs.
    """

    allowed_lateness_us: int | None = None
    late_rule: LateRule | None = None
    null_keys: NullKeys | None = None
    future_us: int | None = None
    ttl: StateTtlConfig | None = None
    emit: EmitMode | None = None
    trigger: Trigger | None = None
    accumulation: Accumulation | None = None
    pane: bool | None = None
    future_action: FutureAction | None = None
    future_reference: FutureReference | None = None
    late_watermark: LateWatermark | None = None
    max_listed: int | None = None
    named: str | None = None
    preset: str | None = None
    touch: SessionTouch | None = None
    initial_us: int | None = None

    def filled(self, **values: Any) -> Self:
        """Return the options, with `values` where the user set none."""
        return attrs.evolve(self, **{name: value for name, value in values.items() if getattr(self, name) is None})

    def options(self) -> QueryOptions:
        """With the defaults where nothing was given."""
        values = attrs.asdict(
            self, recurse=False, filter=lambda field, value: value is not None and field.name not in _ELSEWHERE
        )
        return QueryOptions(**values)
