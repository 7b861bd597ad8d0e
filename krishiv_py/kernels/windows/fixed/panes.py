"""Time-interval panes (SEMANTICS §3.6): triggered windows that fire again when the watermark grows, and tell of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.types import Ints, pick
from krishiv_py.errors import RAISED, OperatorError, SchemaError, failure_text, shown
from krishiv_py.kernels.aggregates.base import shown_key
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.firing import Firings
from krishiv_py.kernels.prefixes import Units
from krishiv_py.kernels.prepare import as_batch
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import WINDOW
from krishiv_py.kernels.windows.fixed.triggered import HeldWindows, TriggeredOperator
from krishiv_py.plan.running import FAILED_HANDLER
from krishiv_py.plan.windows.panes import Pane, PaneTiming, PaneWindow

_TIMINGS: Final[dict[str, PaneTiming]] = {"early": "early", "on_complete": "on_complete", "late": "late"}


class PaneOperator(TriggeredOperator):
    """Panes. With a handler the first aggregate is the list of the partition's tuples, so that it can be handed over."""

    on_time_name = "on_complete"
    new_name = "on_complete"

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, PaneWindow)
        self.submits, self.submitted = spec.operation.submits, Layout(spec).result_schema
        self.once = spec.options.emit_mode == "final" and self.submits is None
        options = attrs.evolve(spec.options, accumulation="accumulating") if self.once else spec.options
        super().__init__(attrs.evolve(spec, operation=attrs.evolve(spec.operation, submits=None), options=options))
        self.handler = spec.operation.handler
        self._insertions = self.handler is not None and self.handler.wants_insertions
        self.by_row = self.by_row or self._insertions
        self._events: list[tuple[int, str, Pane]] = []
        self._closed: list[pa.Table] = []
        """Results of panes that are closed, where each has one only."""
        self._aside: list[tuple[str, str, pa.Table]] = []
        """The tuples that handlers have raised for, each with the name of the handler and what it said."""
        self._fresh, self._row = pa.chunked_array([], pa.null()), 0
        """The tuples that are inserted, and which of them handlers hear of."""

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        self._events, self._closed, self._aside = [], [], []
        result = super().step(bucket, chunks, moment)
        if self.once:
            last = self.emitter.concat(self._closed)
            result = attrs.evolve(result, results=last, firings=last.num_rows)
        # pane by pane, as one notification after the other: everything of a pane before the next one
        events = sorted(self._events, key=lambda e: e[0])
        given = [(window, pane, row) for window, event, pane in events for row in self._call(event, pane)]
        if self._aside:
            result = attrs.evolve(result, **self._late(moment.watermark_us))
        if self.submits is None:
            return result
        table = self._submitted(given)
        return attrs.evolve(result, results=table, firings=table.num_rows)

    def _late(self, watermark_us: int) -> dict[str, Any]:
        """Return the late rows of a step and how many there are by the name of the handler."""
        counters: dict[str, int] = {}
        for name, _, rows in self._aside:
            counters[f"{FAILED_HANDLER}{name}"] = counters.get(f"{FAILED_HANDLER}{name}", 0) + rows.num_rows
        late = [self.layout.aside(rows, reason, watermark_us) for _, reason, rows in self._aside]
        return {"late": pa.concat_tables(late), "counters": counters}

    def _call(self, event: str, pane: Pane, *row: object) -> list[Any]:
        """Call the handlers, and return the tuples they submit."""
        assert self.handler is not None
        return [t for name, function in self.handler.calls[event] for t in self._call_one(name, function, event, pane, *row)]

    def _call_one(self, name: str, function: Callable[..., Any], event: str, pane: Pane, *row: object) -> list[Any]:
        try:
            given = function(pane, *row)
        except RAISED as problem:  # user code: whatever it raises is reported with the pane
            if self.handler is not None and self.handler.on_error == "side_output":
                rows = self._inserted if row else pane.data
                assert rows is not None
                self._aside.append((name, failure_text(problem, placed=False), rows))
                return []
            key = shown_key(pane.key, pane.key.values())
            got = f"pane {pane.interval_start} to {pane.interval_end}{', ' if key else ''}{key}"
            hint = f"fix {name}"
            raise OperatorError(f"pane handler {name} failed", got=got, then=failure_text(problem), hint=hint) from problem
        if given is None:
            return []
        if self.submits is not None and not row:
            return given if isinstance(given, list) else [given]
        raise OperatorError(
            f"{event} returned something",
            got=shown(given),
            then="a handler has no output: it would be lost",
            hint="return nothing; results are the column `tuples`, or those of .agg(...); "
            "to submit tuples from a trigger write .on_events(..., submits=schema)",
        )

    @property
    def _inserted(self) -> pa.Table:
        """The tuple that handlers hear of, as it came: they may have changed theirs."""
        return pa.Table.from_struct_array(self._fresh.slice(self._row, 1))

    def _submitted(self, given: list[tuple[int, Pane, Any]]) -> pa.Table:
        """Return what handlers submitted, with key, interval and firing of its pane."""
        assert self.submits is not None
        try:
            rows = as_batch([row for _, _, row in given], self.submits) if given else None
        except SchemaError as problem:
            raise OperatorError(f"a pane handler submitted a tuple of another form: {problem}") from problem
        if rows is None:
            return self.submitted.empty_table()
        spec, starts = self.layout.spec, np.array([window for window, _, _ in given])
        columns = [pa.array([p.key[k] for _, p, _ in given], t) for k, t in zip(spec.keys, self.layout.key_types, strict=True)]
        columns += [unstamp(bounds, spec.time_kind) for bounds in (starts, starts + self.window.size_us)]
        columns += rows.columns
        if spec.options.pane:
            columns += [
                pa.array([p.timing for _, p, _ in given], pa.string()),
                pa.array([p.index for _, p, _ in given], pa.int64()),
            ]
        return pa.Table.from_arrays(columns, schema=self.submitted)

    def _pane(self, window: int, key: dict[str, Any], state: Any, **more: Any) -> Pane:
        bounds = unstamp(np.array([window, window + self.window.size_us]), self.layout.spec.time_kind).to_pylist()
        return Pane(key, bounds[0], bounds[1], state, **more)

    def _keys(self, keys: pa.Table) -> list[dict[str, Any]]:
        """Keys under the names of their columns."""
        names = self.layout.spec.keys
        columns = [keys[n].to_pylist() for n in self.layout.key_names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] if names else [{}] * len(keys)

    def _taken_in(self, fresh: pa.Table, units: Units, watermark_us: int) -> None:
        """Tell of insertions, row by row and pane by pane."""
        if self.handler is None or not self._insertions:
            return
        self._fresh = fresh["a0"]
        rows = self._fresh.to_pylist()
        keys = self._keys(units.keys)
        panes = [
            self._pane(w, key, "complete" if w + self.window.size_us <= watermark_us else "incomplete")
            for w, key in zip(units.pair_windows.tolist(), keys, strict=True)
        ]
        for row, pair in zip(units.rows.tolist(), units.ids.tolist(), strict=True):
            self._row = row
            self._call("before_tuple_insertion", panes[pair], rows[row])
            self._call("after_tuple_insertion", panes[pair], rows[row])

    def _written(self, firings: Firings) -> pa.Table:
        table = super()._written(firings)
        if self.handler is not None:
            self._tell(firings.windows, firings.keys, self._lists(firings.partials), firings)
        return table

    def _lists(self, partials: pa.Table) -> list[pa.Table]:
        """Return the tuples of every partition; none where firings discard them and none came since the last one."""
        lists = whole(partials[self.layout.partial_names[0][1]])
        none = pa.array([], lists.type.value_type)
        return [pa.Table.from_struct_array(lists[i].values if lists[i].is_valid else none) for i in range(len(lists))]

    def _tell(self, windows: Ints, keys: pa.Table, data: list[pa.Table], firings: Firings) -> None:
        names = self._keys(keys)
        for i, window in enumerate(windows.tolist()):
            timing = _TIMINGS[str(firings.pane[i])]
            if timing == "on_complete":
                self._events.append((window, "window_initial_full", self._pane(window, names[i], "complete", data=data[i])))
            state = "incomplete" if timing == "early" else "complete"
            index = int(firings.index[i])
            pane = self._pane(window, names[i], state, timing=timing, index=index, data=data[i])
            self._events.append((window, "window_trigger", pane))

    def _closing(self, held: HeldWindows, window: int) -> None:
        """Tell of the end of a pane, partition by partition; with ``emit("final")`` its results come now."""
        if self.handler is None and not self.once:
            return
        log, _ = held.load([window])
        groups = group([log[k] for k in self.layout.key_names], log.num_rows)
        keys = pick(log.select([WINDOW, *self.layout.key_names]), groups.first)
        state = held.given(self.log.resolve(log, groups.ids, groups.n), keys)
        every = np.arange(groups.n)
        total = self._value(log, groups.first, state, every) if self.once else self.log.total(state, every)
        if self.once:
            starts = np.full(groups.n, window)
            rows = pa.Table.from_arrays([*keys.columns, *total.columns], names=[*keys.column_names, *total.column_names])
            self._closed.append(self.emitter.rows(rows, starts, starts + self.window.size_us, "+I"))
        if self.handler is None:
            return
        # a pane that fired in this step is still whole in the log, as it is about to be dropped; others fired before
        data = self._lists(self.log.nothing(groups.n) if self.discarding else total)
        for i, key in enumerate(self._keys(keys)):
            self._events.append((window, "window_close", self._pane(window, key, "closed", data=data[i])))
