"""The options of a query as a user told them; None where nothing was said."""

from __future__ import annotations

from typing import Any

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

_ELSEWHERE = ("preset", "touch", "initial_us")


@attrs.frozen
class ToldOptions:
    """:class:`~krishiv_py.plan.options.query.QueryOptions` with holes.

    Attributes
    ----------
    preset : str or None
        The system whose switches fill the holes.
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
    preset: str | None = None
    touch: SessionTouch | None = None
    initial_us: int | None = None

    def filled(self, **values: Any) -> Self:
        """With `values` where nothing was told."""
        return attrs.evolve(self, **{name: value for name, value in values.items() if getattr(self, name) is None})

    def options(self) -> QueryOptions:
        """With the defaults where nothing was told."""
        values = attrs.asdict(self, recurse=False, filter=lambda at, value: value is not None and at.name not in _ELSEWHERE)
        return QueryOptions(**values)
