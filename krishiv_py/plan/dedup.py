"""Deduplication (SEMANTICS §8): of rows that are equal in some columns and close in time, the first to arrive passes.

::

    within         ├────────┤
    rows           ●   ×   ×●   ×      a row is compared with rows that passed, not with duplicates
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.plan.checks import one_of
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.operation import Nature, Operation
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.schema import RESERVED

Duplicates: TypeAlias = Literal["count", "side_output"]
DUPLICATE: Final = "duplicate"
"""The reason of duplicates among late rows."""


@attrs.frozen
class Deduplication(Operation):
    """Rows pass unless a row with equal keys passed less than `within_us` before or after them, by event time.

    Attributes
    ----------
    within_us : int
        The length of time, µs.
    duplicates : {"count", "side_output"}
        Whether duplicates are only counted, or also handed to the late handler.
    hidden : tuple of str
        Columns that were computed to compare rows by, and are not columns of the rows that pass.
    hides_time : bool
        Whether the rows are results of a stage whose event time nobody named: only another stage gets it.
    """

    kind: ClassVar[str] = "deduplication"
    nature: ClassVar[Nature] = Nature("Deduplicate", keeps_carried=False)
    remembers: ClassVar[bool] = True
    within_us: int
    duplicates: Duplicates = "count"
    hidden: tuple[str, ...] = ()
    hides_time: bool = False

    def identity(self) -> dict[str, str]:
        return {"within_us": repr(self.within_us)}  # who gets the duplicates may change

    def unwaiting(self) -> str | None:
        return "deduplicated rows do not wait for the watermark: a row passes in the micro-batch in which it arrives"

    def describe(self) -> str:
        aside = ", duplicates to the late output" if self.duplicates == "side_output" else ""
        return f"first row within {show_us(self.within_us)}{aside}"

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")  # a row passes once, whatever the allowed lateness

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        fires = options.trigger != Trigger() or options.accumulation != "accumulating" or options.pane
        if fires or options.emit_mode != "final":
            then = "a row passes once, when it arrives, and is never taken back"
            hint = "leave .trigger, .accumulation, .with_pane and .emit out, and presets that set them"
            raise PlanError("deduplication knows neither triggers nor emit modes", got=options.describe(), then=then, hint=hint)

    def forgets_early(self, ttl_us: int, lateness_us: int) -> str | None:
        """Return what to say of state that lives `ttl_us`, with the allowed `lateness_us`; None if it lives long enough."""
        if ttl_us >= self.within_us + lateness_us:
            return None
        return "shorter than `within` and the allowed lateness: after a pause of its key a duplicate passes"

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        # keys of floating point are compared by their normal form, and come out as they came
        return tuple(f.name for f in self._given(row) if f.name not in self.keys or pa.types.is_floating(f.type))

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return self._given(row)

    def _given(self, row: pa.Schema) -> list[pa.Field]:
        return [f for f in passing(row) if f.name not in self.hidden]


def passing(row: pa.Schema) -> list[pa.Field]:
    """Return the columns of a `row` that are its own."""
    return [f for f in row if not f.name.startswith(RESERVED)]


def deduplication(within: Duration, duplicates: Duplicates = "count", hidden: tuple[str, ...] = ()) -> Deduplication:
    """Return a checked :class:`Deduplication`."""
    if within is None:
        then = "every row would be kept in state for ever"
        hint = 'write within="10 minutes", as far apart as duplicates can be'
        raise PlanError("drop_duplicates needs a length of time", got="within=None", then=then, hint=hint)
    one_of(duplicates, "duplicates", ("count", "side_output"))
    return Deduplication(to_us(within, "within"), duplicates, hidden)
