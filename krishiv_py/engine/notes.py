"""Define what travels next to rows: notes of a task on a micro-batch, the report of a bucket. Only here they become bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from krishiv_py.kernels.input.prepare import COUNTERS, Prepared
from krishiv_py.kernels.input.watermark import ONLY
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running import Control, under_new_names

FIRINGS = "firings"
"""What results are counted under."""


def none_counted() -> dict[str, int]:
    """Counters at the beginning."""
    return dict.fromkeys(COUNTERS, 0)


def count(into: dict[str, int], counted: Mapping[str, int]) -> None:
    """Add counters to others, in place."""
    for name, n in counted.items():
        if n or name not in into:
            into[name] = into.get(name, 0) + n


Reached: TypeAlias = tuple[int, int, int]
"""A partition in a batch: its largest event time, µs; its late rows; the largest time of those, µs."""


def reached(into: dict[str, Reached], more: Mapping[str, Reached]) -> None:
    """Add what partitions gave to what they gave before, in place."""
    for partition, (top_us, late, latest_late_us) in more.items():
        known = into.get(partition, (UNSET, 0, UNSET))
        into[partition] = max(known[0], top_us), known[1] + late, max(known[2], latest_late_us)


@attrs.define
class Notes:
    """Holds what one task learnt of a micro-batch next to its rows.

    Attributes
    ----------
    counters : dict
        Rows by fate.
    maxima : dict
        Largest event time by source, µs.
    advances : list of Control
        What the batch reported of the watermark.
    ahead : dict
        How many rows are too far ahead by source.
    partitions : dict
        What each partition gave of a source where all have one watermark.
    """

    counters: dict[str, int] = attrs.field(factory=none_counted)
    maxima: dict[str, int] = attrs.field(factory=dict)
    advances: list[Control] = attrs.field(factory=list)
    ahead: dict[str, int] = attrs.field(factory=dict)
    partitions: dict[str, Reached] = attrs.field(factory=dict)

    def take(self, prepared: Prepared, partition: str = "") -> None:
        """Add what was learnt of a batch of rows, all of one partition where it has a name."""
        count(self.counters, prepared.counters)
        for source, time_us in prepared.maxima.items():
            self.maxima[source] = max(self.maxima.get(source, UNSET), time_us)
        count(self.ahead, prepared.ahead)
        if partition and ONLY in prepared.maxima:
            given = prepared.maxima[ONLY], prepared.counters["late"], prepared.latest_late_us
            reached(self.partitions, {partition: given})

    def refuse(self, n: int) -> None:
        """Count malformed input."""
        count(self.counters, {"rows": n, "malformed": n})

    def latest_us(self) -> int:
        """Return the latest processing time that was given, µs; 0 if none was."""
        return max((a.now_us for a in self.advances), default=0)

    def to_bytes(self) -> bytes:
        """As it travels through a shuffle."""
        advances = [[a.watermark_us, a.source, a.now_us] for a in self.advances]
        return json.dumps([self.counters, self.maxima, advances, self.ahead, self.partitions]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Notes:
        """Return what :meth:`to_bytes` wrote."""
        counters, maxima, advances, ahead, partitions = json.loads(data)
        return cls(counters, maxima, [Control(*values) for values in advances], ahead, partitions)


@attrs.frozen
class Report:
    """Holds what a bucket reports after a micro-batch.

    Attributes
    ----------
    counters : dict
        Rows by fate, and firings, since the query began.
    open_windows, open_rows, state_bytes : int
        What its state holds.
    notes : tuple of Notes
        The maxima and advances of the tasks whose notes came to it. Their counters are part of `counters`.
    wakeup_now_us : int or None
        The processing time at which it has something to do even without rows.
    given : dict
        Rows that went to outputs since the query began, by the name of the output.
    """

    counters: dict[str, int]
    open_windows: int
    open_rows: int
    state_bytes: int
    notes: tuple[Notes, ...] = ()
    wakeup_now_us: int | None = None
    given: dict[str, int] = attrs.field(factory=dict)

    def saved(self) -> dict[str, Any]:
        """As plain data, as the metrics file of a checkpoint holds it too; without partitions, which only a batch needs."""
        return {
            "counters": self.counters,
            "open_windows": self.open_windows,
            "open_rows": self.open_rows,
            "state_bytes": self.state_bytes,
            "notes": [[n.maxima, [[a.watermark_us, a.source, a.now_us] for a in n.advances], n.ahead] for n in self.notes],
            "wakeup_now": self.wakeup_now_us,
            **({"given": self.given} if self.given else {}),
        }

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> Report:
        """Return what :meth:`saved` gave."""
        notes = [
            Notes({}, maxima, [Control(*advance) for advance in advances], dict(*ahead))  # earlier versions kept no `ahead`
            for maxima, advances, *ahead in saved.get("notes", [])
        ]
        if saved.get("partitions"):
            notes.append(Notes({}, partitions={p: tuple(given) for p, given in saved["partitions"].items()}))
        sizes = saved["open_windows"], saved["open_rows"], saved["state_bytes"]
        return cls(under_new_names(saved["counters"]), *sizes, tuple(notes), saved.get("wakeup_now"), saved.get("given", {}))

    def to_bytes(self) -> bytes:
        """As it travels to the driver."""
        partitions: dict[str, Reached] = {}
        for notes in self.notes:
            reached(partitions, notes.partitions)
        return json.dumps({**self.saved(), "partitions": partitions}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        """Return what :meth:`to_bytes` wrote."""
        return cls.restored(json.loads(data))
