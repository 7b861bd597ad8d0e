"""The options of a query: lateness, keys, TTL, emission, batches; those that a user set, and presets for the others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs
from typing_extensions import Self

from krishiv_py.deprecation import deprecated
from krishiv_py.errors import CallError, PlanError, shown
from krishiv_py.plan.checks import PathLike, a_number, a_path, a_switch, a_text, microseconds, one_of
from krishiv_py.plan.durations import MAX_TIME_US, UNSET, Duration, milliseconds, show_us, to_us
from krishiv_py.plan.options.triggers import Accumulation, Trigger

LateRule: TypeAlias = Literal["event", "window"]
NullKeys: TypeAlias = Literal["group", "side_output"]
FutureAction: TypeAlias = Literal["warn", "drop", "side_output"]
FutureReference: TypeAlias = Literal["watermark", "clock"]
LateWatermark: TypeAlias = Literal["batch", "batch_before"]
OnExpiry: TypeAlias = Literal["retract", "keep"]
SessionTouch: TypeAlias = Literal["separate", "merge"]
TtlOfSides: TypeAlias = "tuple[int | None, int | None]"
"""The times to live of both sides of a join, µs, or None for ever."""
EmitMode: TypeAlias = Literal["final", "updates", "retractions"]
DEFAULT_FUTURE_US = 60_000_000
MAX_LISTED = 50_000_000
"""The number of values that the lists of one key may hold together in one step, unless ``max_listed`` says otherwise."""


@attrs.frozen(init=False)
class StateTtlConfig:
    """Drops and counts the state of a key without new rows for a time to live (SEMANTICS §6.1).

    Parameters
    ----------
    ttl : int or timedelta or str
        Time to live, positive; ``int`` is milliseconds.
    ttl_ms : int
        The same as a number of milliseconds, instead of `ttl`.
    clock : {"event", "processing"}
        Whether the watermark or the wall clock measures it.
    on_expiry : {"retract", "keep"}
        Whether results of a key without a window are withdrawn with its state, or stay as they were; a later row of the key
        then begins from nothing (SEMANTICS §16.5). Windows give their results by themselves, whatever it is.

    Attributes
    ----------
    ttl_us : int
        The time to live in microseconds.

    Examples
    --------
    >>> from krishiv_py import StateTtlConfig
    >>> StateTtlConfig("1 hour").ttl_us
    3600000000
    >>> StateTtlConfig(ttl="1 day", clock="processing")
    StateTtlConfig(ttl='1 day', clock='processing', on_expiry='retract')
    """

    ttl: Duration = attrs.field(eq=False)
    clock: Literal["event", "processing"] = attrs.field(default="event")
    on_expiry: OnExpiry = attrs.field(default="retract")
    _sides: TtlOfSides | None = attrs.field(default=None, repr=False)
    ttl_us: int = attrs.field(init=False, repr=False)

    @ttl_us.default
    def _positive(self) -> int:
        return to_us(self.ttl, "ttl")

    @clock.validator
    def _check_clock(self, _attribute: object, value: str) -> None:
        one_of(value, "clock", ("event", "processing"))

    @on_expiry.validator
    def _check_expiry(self, _attribute: object, value: str) -> None:
        one_of(value, "on_expiry", ("retract", "keep"))

    def __init__(
        self,
        ttl: Duration | None = None,
        clock: Literal["event", "processing"] = "event",
        *,
        ttl_ms: Duration | None = None,
        on_expiry: OnExpiry = "retract",
    ) -> None:
        given = ttl_ms if ttl is None else ttl
        if given is None or (ttl is not None and ttl_ms is not None):
            got = "none" if ttl is None else f"ttl={shown(ttl)}, ttl_ms={shown(ttl_ms)}"
            raise CallError("StateTtlConfig takes one time to live", got=got, hint='write StateTtlConfig(ttl="1 hour")')
        self.__attrs_init__(given if ttl_ms is None else milliseconds(ttl_ms, "ttl_ms"), clock, on_expiry)

    @classmethod
    def _of_sides(cls, sides: TtlOfSides) -> StateTtlConfig:
        """Return that of a join whose sides have each their own, by the clock; `ttl` is the shorter one."""
        made = cls.__new__(cls)
        shorter = min(us for us in sides if us is not None)
        made.__attrs_init__(dt.timedelta(microseconds=shorter), "processing", "retract", sides)
        return made

    @property
    def _measured(self) -> str:
        """The time that measures it, as a checkpoint notes it."""
        if self._sides is None:
            return self.clock
        apart = [name for name, us in zip(("left", "right"), self._sides, strict=True) if us is not None]
        return f"{' and '.join(apart)} {self.clock}"

    def _describe(self) -> str:
        stays = ", results stay" if self.on_expiry == "keep" else ""
        if self._sides is None:
            return f"{show_us(self.ttl_us)} ({self.clock} time{stays})"
        each = (f"{name} {show_us(us)}" for name, us in zip(("left", "right"), self._sides, strict=True) if us is not None)
        return f"{', '.join(each)} ({self.clock} time{stays})"

    @property
    def ttl_ms(self) -> Duration:
        """The time to live as a number of milliseconds, where it is a whole one; else as it was given.

        Examples
        --------
        >>> from krishiv_py import StateTtlConfig
        >>> StateTtlConfig(ttl_ms=60_000) == StateTtlConfig(ttl="1 minute"), StateTtlConfig("1 minute").ttl_ms
        (True, 60000)
        """
        return self.ttl if self.ttl_us % 1_000 else self.ttl_us // 1_000


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
    """The watermark that says that a row is late: that of its batch, or that of the batch before (SEMANTICS §4.6)."""
    max_listed: int = MAX_LISTED
    named: str | None = None
    """The name of the stage, by which its state is found again (SEMANTICS §12.2)."""
    left_us: int = UNSET
    """Windows that end up to here have left for ever, whatever the allowed lateness is now (SEMANTICS §12.3)."""

    @property
    def late_by_batch_before(self) -> bool:
        """Return whether rows are classified by the watermark of the batch before, as Structured Streaming does (SEMANTICS
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
            parts.append(f"ttl={self.ttl._describe()}")
        if self.max_listed != MAX_LISTED:
            parts.append(f"max_listed={self.max_listed}")
        return ", ".join(parts)


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

    Examples
    --------
    >>> from krishiv_py import Batches
    >>> Batches.every("10 s")
    Batches(kind='every', interval_us=10000000, flush=False, snapshot=False, max_rows=1000000, max_bytes=268435456)
    """

    kind: str = "fast"
    interval_us: int = 0
    flush: bool = False
    snapshot: bool = False
    max_rows: int = 1_000_000
    max_bytes: int = 256 << 20
    _kept: int = attrs.field(default=0, repr=False)
    """The number of last batches that the checkpoint can go back to, as ``start(keep_batches=...)`` says."""

    def __attrs_post_init__(self) -> None:
        one_of(self.kind, "kind", ("fast", "every", "target", "available_now"))
        microseconds(self.interval_us, "interval_us", 1_000 if self.kind in ("every", "target") else 0, MAX_TIME_US)
        a_number(self.max_rows, "max_rows", 1, "pass how many rows a batch may take, such as 1_000_000")
        a_number(self.max_bytes, "max_bytes", 1, "pass how many bytes a batch may take, such as 256 << 20", most=1 << 50)
        a_switch(self.flush, "flush")
        a_switch(self.snapshot, "snapshot")
        if self.flush and self.snapshot:
            then = "after the end of input nothing is open that could be shown"
            hint = "use flush if the input is complete, snapshot if more is to come"
            raise PlanError("`flush` and `snapshot` exclude each other", got="both are True", then=then, hint=hint)

    @property
    def _goes_on(self) -> bool:
        """True if a last micro-batch follows when the input there was is done."""
        return self.flush or self.snapshot

    @classmethod
    def as_fast_as_possible(cls) -> Batches:
        """Start the next micro-batch as soon as the last one is done and there is input.

        Examples
        --------
        >>> from krishiv_py import Batches
        >>> Batches.as_fast_as_possible() == Batches()
        True
        """
        return cls()

    @classmethod
    def every(cls, interval: Duration) -> Batches:
        """Start a micro-batch every `interval` of wall-clock time, with the input since the last one.

        Examples
        --------
        >>> from krishiv_py import Batches
        >>> Batches.every("1 min").kind
        'every'
        """
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
            How many rows a batch takes at the most, however fast it is; of files about so many, and at least one file.
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

        Examples
        --------
        >>> from krishiv_py import Batches, MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     _ = sender.send([{"at": 1}])
        ...     counts = stream.watermark("at", 0).tumbling_window(10).agg(count())
        ...     query = counts.start(MemorySink(), batches=Batches.available_now(flush=True))
        ...     _ = query.await_termination()
        ...     query.results().to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 1}]
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


_MOST_KEPT: Final = 100_000


def given_batches(batches: Batches | None, trigger: Batches | None, keep_batches: int | None = None) -> Batches:
    """Return what ``start()`` was given, under the name `batches` or under the old one, `trigger`, and how many are kept."""
    given = batches
    if trigger is not None:
        if batches is not None:
            raise PlanError("`trigger` is the old name of `batches`", got="both of them", hint="pass batches only")
        given = trigger
    if given is None:
        given = Batches.as_fast_as_possible()
    if not isinstance(given, Batches):
        hint = 'pass batches=Batches.every("10 s"); when windows fire is set by .trigger(...) on the stream'
        raise PlanError("`batches` is not a Batches", got=shown(given), hint=hint)
    if trigger is not None:
        deprecated("start(trigger=...)", "start(batches=...)", callers=2)
    if keep_batches is None:
        return given
    hint = "pass how many of the last batches can be captured, such as 50, or leave it out"
    return attrs.evolve(given, kept=a_number(keep_batches, "keep_batches", 1, hint, most=_MOST_KEPT))


OnChange: TypeAlias = Literal["reset", "drop"]
ON_CHANGE: Final = ("reset", "drop")


@attrs.frozen
class StartPoint:
    """Says where a query begins.

    Attributes
    ----------
    savepoint : str or os.PathLike
        The folder of the savepoint.
    on_change : dict
        By the name of a stage: ``"reset"`` lets it begin without its state, ``"drop"`` leaves the state of one aside that the
        plan has no more.
    seam : dict or None
        Of a savepoint of a history: from which event time on rows are those of the live source, µs, by the name of the source.
    archives : tuple of int
        The sources, by number, whose past is in archives: what is new in the plan is rebuilt from it.
    history : str or None
        The savepoint of a run over these archives, from which stages that are rebuilt have their state.
    """

    savepoint: str
    on_change: dict[str, str]
    seam: dict[str, int] | None = None
    archives: tuple[int, ...] = ()
    history: str | None = None


def given_begin(savepoint: PathLike | None, on_change: Mapping[str, Any] | None) -> StartPoint | None:
    """Return where a query begins; None for an empty state or its checkpoint.

    Raises
    ------
    PlanError
        For a value that is not a folder, and not a word for a stage.
    """
    if savepoint is None:
        if on_change is not None:
            hint = "pass savepoint=..., the folder of one, too"
            raise PlanError("on_change says what is lost of a savepoint", got="on_change without savepoint", hint=hint)
        return None
    savepoint = a_path(savepoint, "savepoint", "pass the folder of a savepoint, or leave it out")
    words = {} if on_change is None else on_change
    if not isinstance(words, Mapping):
        raise PlanError("on_change is a dictionary", got=shown(on_change), hint='write on_change={"per_hour": "reset"}')
    for stage, word in words.items():
        a_text(stage, "on_change", 'write the name of a stage: on_change={"per_hour": "reset"}')
        one_of(word, "on_change", ON_CHANGE)
    return StartPoint(savepoint, dict(words))


PresetName: TypeAlias = Literal["krishiv", "ripple", "spl", "kip450", "flink", "spark"]

PRESETS: Final[dict[str, dict[str, Any]]] = {
    # the defaults: rows before the watermark are late and counted, one result per window, sessions at exactly the gap are two
    "krishiv": {},
    # 60 s of lateness, a correction is a retraction and an emission, the tracker starts at 0, future rows are ahead of it
    "ripple": {"allowed_lateness_us": 60_000_000, "emit": "retractions", "initial_us": 0, "future_reference": "watermark"},
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


@attrs.frozen
class HandoverOptions:
    """Holds what the query that hands results over is to do.

    Attributes
    ----------
    checkpoint : str
        Its checkpoint, in which the files of the hand-over are.
    watermark_us : int or None
        How far the watermark of the frame is behind that of the results, µs; None for a frame without one.
    clean : bool
        Whether files are deleted once they were read.
    batches : Batches
        When its micro-batches are planned.
    name : str or None
        What it is called.
    """

    checkpoint: str
    watermark_us: int | None
    clean: bool
    batches: Batches
    name: str | None


def handed(
    checkpoint: PathLike | None, watermark: Duration | None, clean: bool, batches: Batches | None, name: str | None
) -> HandoverOptions | None:
    """Return what was given; None where there is no checkpoint, and so nothing is handed over.

    Raises
    ------
    PlanError
        For options without a checkpoint, and for a snapshot.
    """
    a_switch(clean, "clean")
    if name is not None:
        a_text(name, "name", "pass a text, or None for a generated name")
    lag_us = None if watermark is None else to_us(watermark, "watermark", allow_zero=True)
    wanted = given_batches(batches, None)
    if checkpoint is None:
        options = {"watermark": watermark, "clean": clean or None, "batches": batches, "name": name}
        given_options = [key for key, value in options.items() if value is not None]
        if given_options:
            then = "results would be handed over again, and be doubled, after a restart"
            hint = "pass checkpoint=..., a folder; session.temporary_folder() makes one for tests"
            raise PlanError(f"to_dataframe({given_options[0]}=...) needs a checkpoint", got="none", then=then, hint=hint)
        return None
    if wanted.snapshot:
        then = "plain Spark would take them for final ones"
        hint = "leave snapshot=True out, or use start(sink)"
        raise PlanError("early results cannot be handed over", got=f"batches={shown(wanted)}", then=then, hint=hint)
    return HandoverOptions(a_path(checkpoint, "checkpoint", "pass a folder"), lag_us, clean, wanted, name)
