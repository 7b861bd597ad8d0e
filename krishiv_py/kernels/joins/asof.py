"""As-of joins (SEMANTICS §9.2): left rows wait until no nearer right row can come, then each takes the nearest.

Right rows lie in a log by key and time until the watermark has passed them. Of those it has passed, the newest of every key is
kept next to it, for left rows that find no newer one::

    standing: newest of a key │ log: all from here on
    ──────────────────────────┼────────────────────────→ time
                     the watermark, less what left rows wait for
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.joins.base import Joined, JoinOperator
from krishiv_py.kernels.joins.meetings import NOBODY, Pairs, results
from krishiv_py.kernels.joins.nearest import Candidates, Seekers
from krishiv_py.kernels.joins.sides import NUMBER
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.span_log import SpanLog, Wanted, by_key
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.time_log import TimeLog
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.joins.asof import AsofJoin


class _State:
    """Holds what a bucket holds: left rows that wait, right rows, and the newest right rows the watermark has passed."""

    def __init__(self, operator: AsofOperator, bucket: Bucket, over: int) -> None:
        self.lefts = TimeLog(bucket, "al")
        self.rights = SpanLog(bucket, "ar")
        self.standing = KeyedLog(bucket, "as", operator.schemas[1], lambda rows, _: operator.newest(rows, over))

    @property
    def rows(self) -> int:
        """Rows held."""
        return self.lefts.waiting + len(self.rights) + len(self.standing)


class AsofOperator(JoinOperator):
    """See the module's docstring."""

    join: AsofJoin

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.operation, AsofJoin)
        self.join = spec.operation
        self.schemas = tuple(self.schema_of(half) for half in self.halves)

    def newest(self, rows: pa.Table, over: int) -> pa.Table:
        """The newest row of every key, of equal times the last to arrive; without those before `over`."""
        if over != UNSET:
            rows = rows.filter(pa.array(rows[TIME].to_numpy() >= over))
        groups = group([rows[k] for k in self.layout.key_names], rows.num_rows)
        order = np.lexsort((rows[NUMBER].to_numpy(), rows[TIME].to_numpy()))
        last = np.zeros(groups.n, np.int64)
        last[groups.ids[order]] = order  # of several writes to one place the last one stands
        return pick(rows, np.sort(last))

    def _horizon(self, at: int) -> int:
        """Before which time left rows have their result under a watermark."""
        return floor_watermark(at, self.late_us + self.join.ahead_us)

    def _state(self, bucket: Bucket, horizon: int) -> _State:
        """The state; standing rows further back than the tolerance are of no use to left rows from `horizon` on."""
        tolerance = self.join.tolerance_us
        return _State(self, bucket, UNSET if tolerance is None else floor_watermark(horizon, tolerance))

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        known = Joined.of(bucket)
        passed = self._horizon(known.joined_at)
        state = self._state(bucket, passed)
        left, right = known.fresh(chunks, self.halves, self.schemas)
        known.joined_at = max(known.joined_at, moment.watermark_us)
        known.store(bucket)
        state.lefts.append(left.table, passed)
        state.rights.append(pick(right.table, right.seeks))
        horizon = self._horizon(known.joined_at)
        due = state.lefts.load(passed, horizon)
        table, unmatched = (self.layout.result_schema.empty_table(), 0) if due is None else self._given(state, due)
        state.lefts.pass_by(horizon)
        state.lefts.forget(horizon)
        self._pass_by(state, horizon)
        wakeup = state.lefts.next_waiting
        wakeup = None if wakeup is None else wakeup + self.late_us + self.join.ahead_us + 1
        return StepResult(table, wakeup, state.rows, state.rows, table.num_rows, {"unmatched": unmatched})

    def _given(self, state: _State, due: pa.Table) -> tuple[pa.Table, int]:
        """The results of left rows, and how many of them are not given for want of a partner."""
        due = due.combine_chunks()
        candidates = Candidates(due, self.schemas[1], self.layout.key_names)
        seeking = self._seeking(due)
        times, tolerance = due[TIME].to_numpy()[seeking], self.join.tolerance_us
        hashes = due[HASH].to_numpy()[seeking]
        back = np.full(len(times), UNSET) if tolerance is None else times - tolerance
        behind = Seekers(seeking, Wanted(hashes, back, times))
        if self.join.direction != "forward":
            behind.offer_ends(state.rights, candidates, last=True)
            left_over = behind
            if self.join.direction == "backward":  # a row of the log is newer than all that stand
                left_over = behind.only(np.flatnonzero(candidates.places[seeking] == NOBODY))
            standing = state.standing.lookup(sorted_unique(left_over.wanted.hashes))
            if standing.num_rows:
                left_over.offer_all(by_key(standing), candidates)
        if self.join.direction != "backward":
            assert tolerance is not None
            Seekers(seeking, Wanted(hashes, times, times + tolerance)).offer_ends(state.rights, candidates, last=False)
        lefts, places = np.arange(due.num_rows), candidates.places
        met = places != NOBODY
        if self.join.how == "inner":
            lefts, places = lefts[met], places[met]
        table = results(self.layout, self.names, due, candidates.table(), Pairs(lefts, places), due[TIME].to_numpy()[lefts])
        return table, int(np.count_nonzero(~met)) if self.join.how == "inner" else 0

    def _seeking(self, due: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Places of the rows whose keys are all there, by hash."""
        null = np.zeros(due.num_rows, np.bool_)
        for key in self.layout.key_names:
            if due[key].null_count:
                null |= due[key].is_null().to_numpy()
        some = np.flatnonzero(~null)
        return some[stable_order(due[HASH].to_numpy()[some])]

    def _pass_by(self, state: _State, horizon: int) -> None:
        """Take right rows out that the watermark has passed; the newest of every key stay."""
        passed = list(state.rights.take_before(horizon))
        if horizon == END_OF_TIME:
            state.standing.clear()
        elif passed and self.join.direction != "forward":
            tolerance = self.join.tolerance_us
            over = UNSET if tolerance is None else floor_watermark(horizon, tolerance)
            state.standing.append(self.newest(pa.concat_tables(passed), over))

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts left rows without their result, and right rows."""
        passed = self._horizon(Joined.of(bucket).joined_at)
        state, keys = self._state(bucket, passed), DeadKeys.of(dead, self.layout.key_names)
        later, newest = state.rights.remove(keys.rows), state.standing.remove(keys.hashes, keys.rows)
        forgotten: int = newest.num_rows + (0 if later is None else later.num_rows)
        gone = state.lefts.remove(keys.rows, passed)
        waiting = 0 if gone is None else int(np.count_nonzero(gone[TIME].to_numpy() >= passed))
        return waiting + forgotten
