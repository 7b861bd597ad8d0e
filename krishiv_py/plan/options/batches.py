"""Determine when the micro-batches of a query are planned."""

from __future__ import annotations

import attrs

from krishiv_py.deprecation import deprecated
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_number, a_switch, microseconds, one_of
from krishiv_py.plan.durations import MAX_TIME_US, Duration, to_us


@attrs.frozen
class Batches:
    """Says when the next micro-batch of a query is planned: what Spark calls its trigger.

    Use one of :meth:`as_fast_as_possible` (default), :meth:`every`, :meth:`target` and :meth:`available_now`.

    Attributes
    ----------
    kind : {"fast", "every", "target", "available_now"}
        Which of them it is.
    interval_us : int
        The interval of :meth:`every`, or the duration of :meth:`target`, in microseconds.
    flush, snapshot : bool
        The last micro-batch of :meth:`available_now`.
    max_rows, max_bytes : int
        The bounds of :meth:`target`.
    """

    kind: str = "fast"
    interval_us: int = 0
    flush: bool = False
    snapshot: bool = False
    max_rows: int = 1_000_000
    max_bytes: int = 256 << 20

    def __attrs_post_init__(self) -> None:
        one_of(self.kind, "kind", ("fast", "every", "target", "available_now"))
        microseconds(self.interval_us, "interval_us", 1_000 if self.kind in ("every", "target") else 0, MAX_TIME_US)
        a_number(self.max_rows, "max_rows", 1, "pass how many rows a batch may take, such as 1_000_000")
        a_number(self.max_bytes, "max_bytes", 1, "pass how many bytes a batch may take, such as 256 << 20", most=1 << 50)
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
    def _goes_on(self) -> bool:
        """True if a last micro-batch follows when the input there was is done."""
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
    def target(cls, duration: Duration, *, max_rows: int = 1_000_000, max_bytes: int = 256 << 20) -> Batches:
        """Start the next micro-batch as soon as there is input, and let batches grow under a backlog until they take so long.

        For ``Session.in_process()``. It holds for sends of memory streams, and for files that are read without
        `max_files_per_batch`; other sources plan by their own options. Spark decides by itself what a micro-batch takes, so a
        query on Spark refuses it.

        Parameters
        ----------
        duration : int or timedelta or str
            How long a micro-batch should take; ``int`` is milliseconds.
        max_rows : int
            How many rows of sends a batch takes at the most, however fast it is.
        max_bytes : int
            The same in bytes: of sends in memory, of files on disk.

        Raises
        ------
        DurationError
            For a value that is not a duration.
        PlanError
            For bounds below 1.

        Examples
        --------
        >>> Batches.target("200 ms").kind
        'target'
        """
        return cls("target", to_us(duration, "duration"), max_rows=max_rows, max_bytes=max_bytes)

    def _check_for_spark(self) -> None:
        """See that Spark can run such batches.

        Raises
        ------
        PlanError
            For :meth:`target`.
        """
        if self.kind == "target":
            raise PlanError(
                "Batches.target(...) is for a session in process",
                got="a query on Spark",
                then="Spark decides by itself what a micro-batch takes",
                hint="bound its batches with max_files_per_batch of the source or max_offsets_per_batch of read_kafka, "
                "or use Session.in_process()",
            )

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


def given_batches(batches: Batches | None, trigger: Batches | None) -> Batches:
    """Return what ``start()`` was told, under the name `batches` or under the old one, `trigger`."""
    given = batches
    if trigger is not None:
        if batches is not None:
            raise PlanError("`trigger` is the old name of `batches`", got="both of them", hint="pass batches only")
        given = trigger
    if given is None:
        return Batches.as_fast_as_possible()
    if not isinstance(given, Batches):
        hint = 'pass batches=Batches.every("10 s"); when windows fire is set by .trigger(...) on the stream'
        raise PlanError("`batches` is not a Batches", got=shown(given), hint=hint)
    if trigger is not None:
        deprecated("start(trigger=...)", "start(batches=...)", callers=2)
    return given
