"""The switches of six systems, each in one word (SEMANTICS §3 to §5)."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from krishiv_py.plan.options.told import ToldOptions

PresetName: TypeAlias = Literal["krishiv", "ripple", "spl", "kip450", "flink", "spark"]

PRESETS: Final[dict[str, dict[str, Any]]] = {
    # the defaults: rows behind the watermark are late and counted, one result per window, sessions at exactly the gap are two
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
    # the same, but rows are judged by the watermark of the batch before
    "spark": {"late_rule": "window", "touch": "merge", "late_watermark": "batch_before"},
}
"""What each of them sets where nothing else is told, by the names of :class:`~krishiv_py.plan.options.told.ToldOptions`."""


def preset_of(told: ToldOptions) -> ToldOptions:
    """Options with the holes filled that their preset fills."""
    return told.filled(**PRESETS[told.preset]) if told.preset is not None else told
