"""The options that keyed, windowed and aggregated stages share, and the steps that set them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.api.planning import hidden
from krishiv_py.api.query import Runner
from krishiv_py.api.stages import results
from krishiv_py.api.stages.shown import ShownInALine, said_of, some
from krishiv_py.connectors.sinks.known import given_handler
from krishiv_py.errors import PlanError, shown
from krishiv_py.failures.redaction import shown_text
from krishiv_py.plan.checks import a_number, a_text, one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.nodes import StageDraft, only_results
from krishiv_py.plan.options.late import LateEventHandler, OnError
from krishiv_py.plan.options.query import (
    PRESETS,
    EmitMode,
    FutureAction,
    FutureReference,
    LateRule,
    NullKeys,
    PresetName,
    QueryOptions,
    StateTtlConfig,
)
from krishiv_py.plan.options.triggers import Accumulation, Trigger, WindowTrigger
from krishiv_py.plan.schema import without_order

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


@attrs.frozen(eq=False, repr=False)
class OptionMethods(ShownInALine):
    """A stage with its draft; each step returns a new stage, the old one stays as it was."""

    _draft: StageDraft = attrs.field(repr=shown_text)
    _runner: Runner

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns; none for one global key.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("user string, at bigint").watermark("at", 0).key_by("user").keys
        ('user',)
        """
        return self._optional().keys

    @property
    def _options(self) -> QueryOptions:
        """The options in force."""
        return self._optional().options

    @property
    def late_handler(self) -> LateEventHandler:
        """Return who takes late rows.

        Examples
        --------
        >>> from krishiv_py.testing import stream_of
        >>> stream_of("at bigint").watermark("at", 0).late_handler
        DefaultLateEventHandler(by_operator=Counter(), by_reason=Counter())
        """
        return self._optional().late_handler

    def _optional(self) -> StageDraft:
        """Return the draft that options belong to."""
        return self._draft

    def _said(self) -> list[str]:
        return [some(self._row_schema().names) if self._draft.operation is None else "", *said_of(self._draft)]

    def _row_schema(self) -> pa.Schema:
        """Return the schema of rows after the stateless steps; those of results have their event time."""
        return without_order(hidden.row_schema(self._draft.input.input))

    def _with(self, **changes: Any) -> Self:
        return attrs.evolve(self, draft=attrs.evolve(self._draft, **changes))

    def _results(self, stage: StageDraft) -> ResultStream:
        """Return the checked results of a `stage` made of this stream."""
        return results.results_of(stage, self._runner)

    def _with_options(self, **options: Any) -> Self:
        return self._with(explicit=attrs.evolve(self._optional().explicit, **options))

    def preset(self, name: PresetName) -> Self:
        """Set the switches of a system: lateness, late rule, emission, touching sessions, start of the watermark.

        They hold where nothing else is said, whether before or after this step. The last preset replaces the ones before.

        Parameters
        ----------
        name : {"krishiv", "ripple", "spl", "kip450", "flink", "spark"}
            The system. With ``"spark"`` rows are classified by the watermark of the batch before, as in hand-written Structured
            Streaming (SEMANTICS §4.6).

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> windows = stream_of("at bigint").watermark("at", 0).preset("ripple").tumbling_window(10).agg(count())
        >>> out = Driver(windows).send([{"at": 1}, {"at": 12}])
        >>> out.results.to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 1, 'op': '+I'}]
        """
        one_of(name, "name", tuple(PRESETS))
        return self._with_options(preset=name)

    def allowed_lateness(self, lateness: Duration) -> Self:
        """Accept rows up to `lateness` behind the watermark; windows stay in state that much longer (SEMANTICS §4.2).

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 0).allowed_lateness(5).tumbling_window(10).agg(count()))
        >>> [driver.send([{"at": at}]).results.column("count").to_pylist() for at in (1, 12, 9, 30)]
        [[], [1], [2], [1]]
        """
        return self._with_options(allowed_lateness_us=to_us(lateness, "lateness", allow_zero=True))

    def late_rule(self, rule: LateRule) -> Self:
        """Judge rows by `rule` (SEMANTICS §4.2).

        Parameters
        ----------
        rule : {"event", "window"}
            By their own time (default), or by whether all their windows are over.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> rows = stream_of("at bigint").watermark("at", 0)
        >>> for rule in ("event", "window"):
        ...     driver = Driver(rows.late_rule(rule).tumbling_window(10).agg(count()))
        ...     _ = [driver.send([{"at": at}]) for at in (8, 3)]
        ...     print(rule, driver.close().results.column("count").to_pylist())
        event [1]
        window [2]
        """
        one_of(rule, "rule", ("event", "window"))
        return self._with_options(late_rule=rule)

    def null_keys(self, where: NullKeys) -> Self:
        """Say `where` null keys go: a ``"group"`` of their own (default), or the ``"side_output"`` (SEMANTICS §1.3).

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> users = stream_of("user string, at bigint").watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
        >>> driver = Driver(users.null_keys("side_output"))
        >>> _ = driver.send([{"user": None, "at": 1}, {"user": "ann", "at": 2}])
        >>> driver.close().results.to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 10, 'count': 1}]
        >>> driver.progress.late["null_key"]
        1
        """
        one_of(where, "where", ("group", "side_output"))
        return self._with_options(null_keys=where)

    def named(self, name: str) -> Self:
        """Call the stage `name`: in late rows, progress and errors, and where a changed plan finds its state again.

        Without a name a stage is known by what it is, such as ``tumbling windows of 60 s by user`` (SEMANTICS §12.2). Names are
        worth giving where a window may get another size one day, and where two stages are alike.

        Parameters
        ----------
        name : str
            A name that no other stage of the query has.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> minutes = stream_of("at bigint").watermark("at", 0).tumbling_window(60_000).agg(count()).named("per_minute")
        >>> list(Driver(minutes).send([{"at": 1}]).late_by_stage)
        ['per_minute']
        """
        return self._with_options(named=a_text(name, "name", 'write the name of the stage: .named("per_minute")'))

    def emit(self, mode: EmitMode) -> Self:
        """Choose the output `mode` (SEMANTICS §5.4).

        Parameters
        ----------
        mode : {"final", "updates", "retractions"}
            One row per window when it can no longer change; the new value at each firing; or a change log whose column ``op``
            marks retractions. The default is ``"final"``, or ``"updates"`` if more than one firing is possible.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).allowed_lateness(20).tumbling_window(10).agg(count())
        >>> driver = Driver(counts.emit("retractions"))
        >>> out = [driver.send([{"at": at}]).results for at in (1, 12, 9)]
        >>> [(row["op"], row["count"]) for table in out for row in table.to_pylist()]
        [('+I', 1), ('-U', 1), ('+U', 2)]
        """
        one_of(mode, "mode", ("final", "updates", "retractions"))
        return self._with_options(emit=mode)

    def trigger(self, trigger: Trigger) -> Self:
        """Choose by `trigger` when windows fire (SEMANTICS §5.1 to §5.3).

        Parameters
        ----------
        trigger : Trigger
            ``Trigger.on_watermark()`` (default), ``.on_every_element()``, ``.on_count(n)``, ``.on_interval(d)``, ``.when(...)``
            with a trigger of your own (§5.7), or early, on-time and late firings one by one.

        Examples
        --------
        >>> from krishiv_py import Trigger, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
        >>> driver = Driver(counts.trigger(Trigger.on_count(2)))
        >>> [driver.send([{"at": at}]).results.column("count").to_pylist() for at in (1, 2, 3, 4)]
        [[], [2], [], [4]]
        """
        if not isinstance(trigger, Trigger):
            own = isinstance(trigger, WindowTrigger)
            hint = "wrap it: Trigger.when(...)" if own else "pass Trigger.on_count(100) or another"
            raise PlanError("not a Trigger", got=shown(trigger), hint=hint)
        return self._with_options(trigger=trigger)

    def accumulation(self, mode: Accumulation) -> Self:
        """Choose by `mode` what a firing contains: all rows (``"accumulating"``) or only new ones (``"discarding"``).

        Examples
        --------
        >>> from krishiv_py import Trigger, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count()).trigger(Trigger.on_count(2))
        >>> for mode in ("accumulating", "discarding"):
        ...     driver = Driver(counts.accumulation(mode))
        ...     _ = driver.send([{"at": 1}, {"at": 2}])
        ...     print(mode, driver.send([{"at": 3}, {"at": 4}]).results.column("count").to_pylist())
        accumulating [4]
        discarding [2]
        """
        one_of(mode, "mode", ("accumulating", "discarding"))
        return self._with_options(accumulation=mode)

    def with_pane(self) -> Self:
        """Add the columns ``pane_timing`` and ``pane_index`` to results (SEMANTICS §5.5).

        The timing is ``early``, ``on_time`` or ``late``; ``final`` with ``emit("final")`` and of a count window that is full.
        Time-interval panes say ``on_complete`` for ``on_time``. The index is the zero-based number of the firing of the key
        and window; a retraction has the index of the firing it belongs to.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).allowed_lateness(20).tumbling_window(10).agg(count())
        >>> driver = Driver(counts.emit("updates").with_pane())
        >>> out = [driver.send([{"at": at}]).results for at in (1, 12, 9)]
        >>> [(row["count"], row["pane_timing"], row["pane_index"]) for table in out for row in table.to_pylist()]
        [(1, 'on_time', 0), (2, 'late', 1)]
        """
        return self._with_options(pane=True)

    def future_tolerance(
        self, tolerance: Duration, action: FutureAction = "warn", reference: FutureReference | None = None
    ) -> Self:
        """Set what happens to rows further ahead than `tolerance` (SEMANTICS §4.4).

        Parameters
        ----------
        tolerance : int or timedelta or str
            How far ahead is still normal; ``int`` is milliseconds; 60 s unless set.
        action : {"warn", "drop", "side_output"}
            Process and count them, drop and count them, or pass them to the late handler with the reason ``future``. With the
            last two, such a row does not move the watermark. In a join it holds for the rows of both sides. Results of a stage
            are never too far ahead, so the last two are refused where there are no other rows.
        reference : {"watermark", "clock"}, optional
            What rows are compared with: the clock when the batch begins (default), or the watermark (default of the preset
            ``ripple``). By the watermark a lull or a catch-up batch longer than `tolerance` puts rows ahead that come in order.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> rows = stream_of("at bigint").watermark("at", 0).future_tolerance("1 min", "drop", "watermark")
        >>> driver = Driver(rows.tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}])
        >>> _ = driver.send([{"at": 2_000}, {"at": 9_000_000}])
        >>> driver.watermark, driver.progress.counters["future_dropped"]
        ('1970-01-01T00:00:02Z', 1)
        """
        one_of(action, "action", ("warn", "drop", "side_output"))
        if reference is not None:
            one_of(reference, "reference", ("watermark", "clock"))
        future_us = to_us(tolerance, "tolerance", allow_zero=True)
        if action != "warn" and only_results(self._optional().input):
            raise PlanError(
                "results of a stage are never too far ahead",
                got=f"future_tolerance(..., {action!r}) after it",
                then="no row would be refused: only clocks of sources are wrong",
                hint="write it before the first window: .watermark(...).future_tolerance(...).key_by(...)",
            )
        return self._with_options(future_us=future_us, future_action=action, future_reference=reference)

    def max_listed(self, values: int) -> Self:
        """Set how many `values` the lists of one key may hold in one step; 50 million by default (docs/costs.md).

        Look-back and distinct-set windows of w rows give lists of w² values for w rows, and ``pairs()`` looks at as many pairs.
        More than this raises an error that names the key, before the memory is full.

        Parameters
        ----------
        values : int
            From 1.

        Examples
        --------
        >>> from krishiv_py import collect_list
        >>> from krishiv_py.testing import Driver, stream_of
        >>> lists = stream_of("at bigint").watermark("at", 0).lookback_window(1_000).agg(collect_list("at"))
        >>> Driver(lists.max_listed(3)).send([{"at": at} for at in range(5)])
        Traceback (most recent call last):
            ...
        krishiv_py.errors.OperatorError: ...collect_list would list more than 3 values of one key...
        """
        most = a_number(values, "values", 1, "write .max_listed(100_000_000)", most=(1 << 62))
        return self._with_options(max_listed=most)

    def with_state_ttl(self, config: StateTtlConfig) -> Self:
        """Drop and count the state of keys without new rows for the time in `config` (SEMANTICS §6.1).

        Examples
        --------
        >>> from krishiv_py import StateTtlConfig, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> users = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
        >>> driver = Driver(users.session_window("1 hour").agg(count()).with_state_ttl(StateTtlConfig(ttl="10 min")))
        >>> _ = driver.send([{"user": "ann", "at": 0}])
        >>> _ = driver.send([{"user": "bob", "at": 1_800_000}])
        >>> driver.progress.counters["ttl_dropped"]
        1
        """
        if not isinstance(config, StateTtlConfig):
            raise PlanError("not a StateTtlConfig", got=shown(config), hint='pass StateTtlConfig(ttl="1 hour")')
        return self._with_options(ttl=config)

    def with_late_event_handler(self, handler: LateEventHandler, *, on_error: OnError = "fail") -> Self:
        """Pass late rows to `handler` instead of only counting them (SEMANTICS §4.3).

        Parameters
        ----------
        handler : LateEventHandler
            Who takes them.
        on_error : {"fail", "side_output"}
            What becomes of rows for which it raises: they stop the query (default), or the query goes on. Then they are
            counted as ``failed_handler:`` and the name of its class in ``progress.counters``, ``progress.doubts`` says what it
            raised, and ``query.late_rows()`` has the last 1 000 of them, with the text of the exception as their reason.
            All this is of one query in this process: a restart begins without it. After a bounded run it is in ``late_handler``
            of the stream.

        Examples
        --------
        >>> from krishiv_py import MemorySink, SideOutputLateEventHandler, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
        >>> driver = Driver(counts.with_late_event_handler(SideOutputLateEventHandler(MemorySink())))
        >>> _ = driver.send([{"at": 15}])
        >>> driver.send([{"at": 3}]).late.select(["at", "reason"]).to_pylist()
        [{'at': 3, 'reason': 'late'}]
        """
        return self._with(late_handler=given_handler(handler, on_error))
