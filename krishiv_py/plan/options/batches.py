"""When the micro-batches of a query are planned."""

from __future__ import annotations

import attrs

from krishiv_py.deprecation import deprecated
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_switch, microseconds, one_of
from krishiv_py.plan.durations import MAX_TIME_US, Duration, to_us


@attrs.frozen
class Batches:
    """When the next micro-batch of a query is planned: what Spark calls its trigger.

    Use one of :meth:`as_fast_as_possible` (default), :meth:`every` and :meth:`available_now`.
    """

    kind: str = "fast"
    interval_us: int = 0
    flush: bool = False
    snapshot: bool = False

    def __attrs_post_init__(self) -> None:
        one_of(self.kind, "kind", ("fast", "every", "available_now"))
        microseconds(self.interval_us, "interval_us", 1_000 if self.kind == "every" else 0, MAX_TIME_US)
        a_switch(self.flush, "flush")
        a_switch(self.snapshot, "snapshot")
        if self.flush and self.snapshot:
            raise PlanError(
                "`flush` and `snapshot` exclude each other",
                got="both are True",
                then="after the end of input nothing is open that could be shown",
                hint="use flush if the input is complete, snapshot if more is to come",
            )

    @property
    def goes_on(self) -> bool:
        """Whether a last micro-batch follows when the input there was is done."""
        return self.flush or self.snapshot

    @classmethod
    def as_fast_as_possible(cls) -> Batches:
        """Start the next micro-batch as soon as the last one is done and there is input."""
        return cls()

    @classmethod
    def every(cls, interval: Duration) -> Batches:
        """Start a micro-batch every `interval` of wall-clock time, with the input since the last one."""
        return cls("every", to_us(interval, "interval"))

    @classmethod
    def available_now(cls, *, flush: bool = False, snapshot: bool = False) -> Batches:
        """Read the existing input, in batches of the source's size, then stop.

        With `flush`, the input then counts as ended: every open window fires (SEMANTICS §2.5), and the watermark of the
        checkpoint stays at plus infinity. **Every row that a later run from this checkpoint reads is late**. Use `flush` only
        if the input is complete. Without it, open windows stay in the checkpoint for the next run.

        With `snapshot`, a last micro-batch gives what is open as early results (timing ``early``, without an index), of several
        stages as the end of the input would give it, and leaves watermark and state as they were: the next run goes on as if
        there had been none (SEMANTICS §10).

        Raises
        ------
        PlanError
            For both at once.
        """
        return cls("available_now", 0, flush, snapshot)


class QueryTrigger(Batches):
    """The old name of :class:`Batches`."""

    @classmethod
    def as_fast_as_possible(cls) -> QueryTrigger:
        """See :meth:`Batches.as_fast_as_possible`."""
        deprecated("QueryTrigger", "Batches")
        return cls()

    @classmethod
    def every(cls, interval: Duration) -> QueryTrigger:
        """See :meth:`Batches.every`, with its `interval`."""
        deprecated("QueryTrigger", "Batches")
        return cls("every", to_us(interval, "interval"))

    @classmethod
    def available_now(cls, *, flush: bool = False, snapshot: bool = False) -> QueryTrigger:
        """See :meth:`Batches.available_now`, with its `flush` and `snapshot`."""
        deprecated("QueryTrigger", "Batches")
        return cls("available_now", 0, flush, snapshot)


def told_batches(batches: Batches | None, trigger: Batches | None) -> Batches:
    """What ``start()`` was told, under the name `batches` or under the old one, `trigger`."""
    given = batches
    if trigger is not None:
        if batches is not None:
            raise PlanError("`trigger` is the old name of `batches`", got="both of them", hint="pass batches only")
        given = trigger
    if given is None:
        return Batches.as_fast_as_possible()
    if not isinstance(given, Batches):
        hint = 'pass batches=Batches.every("10 s"); when windows fire is set by .trigger(...) on the stream'
        raise PlanError("`batches` is no Batches", got=shown(given), hint=hint)
    if trigger is not None:
        deprecated("start(trigger=...)", "start(batches=...)", callers=2)
    return given
