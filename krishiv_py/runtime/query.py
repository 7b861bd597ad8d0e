"""The handle of a running query: what every engine answers in the same way."""

from __future__ import annotations

import threading
import time
from typing import Any, Literal

import pyarrow as pa
from typing_extensions import Self

from krishiv_py.display.drift import Lateness
from krishiv_py.display.html import query_html
from krishiv_py.display.lag import LatenessProfile
from krishiv_py.display.plans import plans_text
from krishiv_py.display.text import LaidOut
from krishiv_py.display.watch import Seen, watch
from krishiv_py.engine.closing import keys_of
from krishiv_py.engine.stage import StageOperator
from krishiv_py.engine.why import why_text
from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import Duration, TimePoint, show_instant, time_point_us, to_us
from krishiv_py.plan.running.progress import Progress
from krishiv_py.planner.cut import StagePlan, leading_stage
from krishiv_py.planner.diagnose import in_stage, oldest_of_all, why_not_fired
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.why import Standing
from krishiv_py.redaction import redacted
from krishiv_py.replay_log import wall_clock_us
from krishiv_py.runtime.keyed_rows import KeyedRows, StateSnapshot, holding
from krishiv_py.runtime.query_metrics import BucketMetrics
from krishiv_py.runtime.query_rows import QueryRows


class RunningQuery:
    """Implements the part of :class:`krishiv_py.api.query.Query` that no engine changes.

    An engine adds `status`, `exception`, `state`, `stop` and how to wait.
    """

    def __init__(self, name: str, ledger: BucketMetrics, plan: PhysicalPlan, note: str | None, rows: QueryRows) -> None:
        self._name = name
        self._ledger = ledger
        self._plan = plan
        self._note = note
        self._rows = rows
        self._lateness = Lateness(plan)
        self._looking = threading.Lock()
        self._snapshots: dict[int, StateSnapshot] = {}

    @property
    def status(self) -> Literal["running", "stopped", "failed"]:
        """``running``, ``stopped`` or ``failed``."""
        raise NotImplementedError

    def exception(self) -> Exception | None:
        """Return what made the query fail; None if it did not fail."""
        raise NotImplementedError

    def state(self, stage: str | None = None) -> pa.Table:
        """Return the windows in state of a stage."""
        raise NotImplementedError

    def lookup(
        self,
        key: Any,
        *,
        window: TimePoint | None = None,
        stage: str | None = None,
        last: int | None = None,
        max_age: Duration = "10 s",
    ) -> pa.Table:
        """Return the open windows of one key, or of a list of keys, from a snapshot of the state that is kept for a while."""
        number = self._plan.stage_called(stage)
        spec, oldest_s = self._plan.stages[number].spec, to_us(max_age, "max_age", allow_zero=True) / 1e6
        at_us = None if window is None else time_point_us(window, "window")
        if last is not None:
            raise PlanError(
                "results that have left are not kept on Spark",
                got=f"last={last!r}",
                then="only open windows can be looked up there",
                hint="leave `last` out, read the sink, or run the query with Session.in_process()",
            )
        keys = keys_of(StageOperator(spec), key)
        with self._looking:
            kept = self._snapshots.get(number)
            if kept is None or kept.age_s > oldest_s:
                began = time.monotonic()
                kept = self._snapshots[number] = StateSnapshot(KeyedRows(self.state(stage)), spec.keys, began)
            found = kept.of(keys)
        return found if at_us is None else holding(found, at_us, spec)

    def savepoint(self, path: str) -> str:
        """Write a savepoint between two micro-batches."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the query."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name it was started under."""
        return self._name

    @property
    def operator(self) -> str:
        """The name of its operator, as in late rows and ``explain()``."""
        return self._plan.spec.name

    @property
    def progress(self) -> Progress:
        """Watermark, late counts, open windows, state."""
        return self._lateness.seen(self._ledger.progress())

    def lateness(self, stage: str | None = None) -> LatenessProfile:
        """Return how late the rows of a source have come so far."""
        return self._lateness.counted(self._ledger.progress(), stage)

    def expect_lateness(self, profile: LatenessProfile, stage: str | None = None) -> None:
        """Warn in `progress` when rows that come from now on are later than a `profile` says."""
        self._lateness.expect(profile, self._ledger.progress(), stage)

    def results(self, output: str | None = None) -> pa.Table:
        """All results so far, of the `output` of this name where there are several; for a memory sink only."""
        return self._rows.result_rows(output)

    def late_rows(self, stage: str | None = None) -> pa.Table:
        """All late rows so far, of the first stage or of the `stage` of this name; for a memory side output only."""
        return self._rows.late_rows(stage)

    def why_not_fired(self, window_end: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what the window of a `stage` that ends at `window_end` is waiting for; without it the oldest that waits."""
        now, moment = self.progress, self._ledger.moment
        stage_plan = self._plan.stages[self._plan.stage_called(stage)]
        end_us = None if window_end is None else time_point_us(window_end, "window_end")
        if end_us is None:
            stages = self._plan.stages if stage is None else [stage_plan]
            stage_plan, end_us = oldest_of_all(stages, lambda one: moment.at(one.times).watermark_us, self.state) or (
                stage_plan,
                None,
            )
        text = why_not_fired(
            stage_plan, self._plan.clocks, moment.at(stage_plan.times).watermark_us, now.source_watermarks_us, end_us
        )
        return LaidOut(" ".join([in_stage(self._plan.stages, stage_plan), text, *self._ledger.waiting()]).lstrip())

    def why(self, key: Any = None, time: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what became of a `key` at a `time`: its windows, the watermark, and where a row of that time would go."""
        if key is None and time is None:
            return self.why_not_fired(stage=stage)
        stage_plan = self._plan.stages[self._plan.stage_called(stage)]
        progress = self.progress
        now = Standing(
            self._ledger.moment.at(stage_plan.times).watermark_us,
            progress.source_watermarks_us,
            self._ledger.moved_us,
            wall_clock_us(),
            progress.idle_sources,
        )
        text = why_text(self._plan, stage_plan, now, key, time, lambda: self.state(stage), self._result_rows(stage_plan))
        return LaidOut("\n".join([text, *self._ledger.waiting()]))

    def _result_rows(self, stage: StagePlan) -> pa.Table | None:
        """Return the results of a stage, where they are in memory."""
        outputs = [o.name for o in self._plan.outputs if self._plan.stages[o.stage] is stage]
        try:
            return self._rows.result_rows(outputs[0]) if len(outputs) == 1 else None
        except PlanError:
            return None

    @property
    def watermark(self) -> str:
        """The watermark that is in force, as text; of several clocks that of the last stage, which waits for all."""
        stages = self._plan.stages
        return show_instant(self._ledger.moment.at(stages[leading_stage(stages)].times).watermark_us)

    def explain(self) -> str:
        """The plan of the query as text."""
        doubts = (f"! {problem}" for problem in self.progress.doubts)
        return LaidOut("\n".join([plans_text(self._plan), *([] if self._note is None else [self._note]), *doubts]))

    def watch(self, *, every: Duration = "1 s", timeout: Duration | None = None) -> None:
        """Show the query where one looks, until it has ended, for at most `timeout`, or until Ctrl-C; the query goes on."""
        step_us = to_us(every, "every")
        until = None if timeout is None else time.monotonic() + to_us(timeout, "timeout") / 1e6
        watch(self._seen, every_s=step_us / 1e6, until=until)

    def _seen(self) -> Seen:
        status = self.status
        problem = self.exception() if status == "failed" else None
        return Seen(self._name, status, self.progress, None if problem is None else str(problem))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return redacted(f"<Query {self._name}: {self.status}, {self.progress}>")

    def _repr_html_(self) -> str:
        """Show the state of the query in a notebook."""
        seen = self._seen()
        return query_html(seen.name, seen.status, seen.progress, seen.problem)


def inside(query: RunningQuery) -> tuple[PhysicalPlan, dict[str, pa.Table]]:
    """Return the plan of a query, and of each stage whose late rows are in memory these rows: for displays."""
    return query._plan, query._rows.late_in_memory()
