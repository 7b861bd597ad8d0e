"""As-of joins (SEMANTICS §9.2): left rows wait until no nearer right row can come, then each takes the nearest.

Right rows lie in a log by key and time until the watermark has passed them. Of those it has passed, the newest of every key is
kept next to it, for left rows that find no newer one::

    standing: newest of a key │ log: all from here on
    ──────────────────────────┼────────────────────────→ time
                     the watermark, less what left rows wait for
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, pick, values_at
from krishiv_py.kernels.changes.readable import readable
from krishiv_py.kernels.columns.layout import TIME, whole
from krishiv_py.kernels.columns.times import stamp
from krishiv_py.kernels.joins.interval import NOBODY, Pairs, results, same_keys
from krishiv_py.kernels.joins.sides import NUMBER, JoinOperator, JoinProgress
from krishiv_py.kernels.ordered import row_ranks
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.time_log import SpanLog, TimeLog, WantedSpans, by_key
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.joins import AsofJoin, FeatureJoin, VersionedJoin
from krishiv_py.plan.schema import time_kind
from krishiv_py.plan.sides import RIGHT


class Candidates:
    """Rows that were found, and which of them is the best for each of the left rows so far.

    Parameters
    ----------
    lefts : pyarrow.Table
        The left rows.
    schema : pyarrow.Schema
        Right rows.
    keys : list of str
        The key columns of both.
    """

    def __init__(self, lefts: pa.Table, schema: pa.Schema, keys: list[str]) -> None:
        self._lefts = lefts
        self._keys = keys
        self._times: Ints = lefts[TIME].to_numpy()
        self._tables = [schema.empty_table()]
        self._rows = 0
        self._rank = np.full((3, lefts.num_rows), np.iinfo(np.int64).max)
        self.places = np.full(lefts.num_rows, NOBODY)

    def table(self) -> pa.Table:
        """Return all rows that were found."""
        return pa.concat_tables(self._tables).combine_chunks()

    def offer(self, rows: pa.Table, rows_at: Ints, lefts: Ints) -> Mask:
        """Take rows in where they are better than what there is: pairs of a row of these, and a left row.

        The nearer row is better, of two equally near ones the earlier, of equal times the later arrival. Gives which pairs have
        equal keys.
        """
        right = rows.select(self._tables[0].column_names)
        equal = same_keys(self._keys, self._lefts, right, Pairs(lefts, rows_at))
        rows_at, lefts = rows_at[equal], lefts[equal]
        if not len(rows_at):
            return equal
        times = right[TIME].to_numpy()[rows_at]
        rank = np.stack([np.abs(times - self._times[lefts]), times, -right[NUMBER].to_numpy()[rows_at]])
        order = np.lexsort((rank[2], rank[1], rank[0], lefts))
        first = order[np.append(True, lefts[order][1:] != lefts[order][:-1])]
        rows_at, lefts, rank = rows_at[first], lefts[first], rank[:, first]
        better = _less(rank, self._rank[:, lefts])
        self._rank[:, lefts[better]] = rank[:, better]
        self.places[lefts[better]] = rows_at[better] + self._rows
        self._add(right)
        return equal

    def choose(self, rows: pa.Table, rows_at: Ints, lefts: Ints) -> None:
        """Take rows in instead of what there is: pairs of a row of these, and a left row."""
        self.places[lefts] = rows_at + self._rows
        self._add(rows.select(self._tables[0].column_names))

    def _add(self, rows: pa.Table) -> None:
        self._tables.append(rows)
        self._rows += rows.num_rows


def _less(one: Ints, other: Ints) -> Mask:
    less: Mask = one[0] < other[0]
    same = one[0] == other[0]
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        less |= same & (mine < theirs)
        same &= mine == theirs
    return less


@attrs.frozen(eq=False)
class Seekers:
    """Left rows that look for a partner, by hash: their places, and between which times they look."""

    places: Ints
    wanted: WantedSpans

    def offer_ends(self, log: SpanLog, candidates: Candidates, *, last: bool) -> None:
        """Offer the latest, or the earliest, row of a log for each."""
        shadowed: list[Ints] = []
        for rows, positions, spans in log.ends_of(self.wanted, last=last):
            shadowed.append(spans[~candidates.offer(rows, positions, self.places[spans])])
        missed = np.unique(np.concatenate([np.empty(0, np.int64), *shadowed]))
        if len(missed):  # a row of another key with the same hash lay at the end
            again = self.only(missed)
            for rows, positions, spans in log.meeting(again.wanted):
                candidates.offer(rows, positions, again.places[spans])

    def offer_all(self, rows: pa.Table, candidates: Candidates) -> None:
        """Offer rows that are laid out by :func:`~krishiv_py.kernels.state.time_log.by_key`."""
        start, stop = self.wanted.ranges(rows[HASH].to_numpy(), rows[TIME].to_numpy())
        positions, spans = expand(start, stop)
        candidates.offer(rows, positions, self.places[spans])

    def only(self, kept: Ints) -> Seekers:
        """Some of them."""
        w = self.wanted
        return Seekers(self.places[kept], WantedSpans(w.hashes[kept], w.low[kept], w.high[kept]))


class _State:
    """Holds what a bucket holds: left rows that wait, right rows, and the newest right rows the watermark has passed."""

    def __init__(self, operator: AsofOperator, bucket: Bucket, over: int) -> None:
        self.lefts = TimeLog(bucket, "al")
        self.rights = SpanLog(bucket, "ar")
        self.standing = KeyedLog(
            bucket, "as", operator.schemas[1], lambda rows, oldest: operator.newest(rows, over, oldest=oldest)
        )

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
        self.given_us = floor_watermark(spec.options.left_us, self.join.ahead_us)
        """Before which time left rows had their result under another allowed lateness."""
        self.schemas = tuple(self.schema_of(half) for half in self.halves)

    def newest(self, rows: pa.Table, over: int, *, oldest: bool = False) -> pa.Table:
        """Return the newest row of every key; without those before `over`. `oldest`: no key has a row elsewhere."""
        if over != UNSET:
            rows = rows.filter(pa.array(rows[TIME].to_numpy() >= over))
        groups = group([rows[k] for k in self.layout.key_names], rows.num_rows)
        order = np.lexsort((self.among_equals(rows), rows[TIME].to_numpy()))
        last = values_at(groups.ids[order], order, groups.n)
        return pick(rows, np.sort(last))

    def among_equals(self, rows: pa.Table) -> Ints:
        """Return what says which of several rows of one key and time counts, the largest: the last to arrive."""
        numbers: Ints = rows[NUMBER].to_numpy()
        return numbers

    def readable(self, rows: pa.Table, moment: Moment) -> tuple[pa.Table, list[pa.Table]]:
        """Part right rows of a batch that can be kept from those that are put aside."""
        return rows, []

    def chosen(self, state: _State, due: pa.Table, candidates: Candidates, seeking: Ints) -> Ints:
        """Return the place of the partner of each left row among the candidates."""
        self.search(state, due, candidates, seeking)
        return candidates.places

    def _horizon(self, us: int) -> int:
        """Before which time left rows have their result under a watermark."""
        return max(floor_watermark(us, self.late_us + self.join.ahead_us), self.given_us)

    def _state(self, bucket: Bucket, horizon: int) -> _State:
        """Return the state; standing rows further back than the tolerance are of no use to left rows from `horizon` on."""
        tolerance = self.join.tolerance_us
        return _State(self, bucket, UNSET if tolerance is None else floor_watermark(horizon, tolerance))

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        known = JoinProgress.of(bucket)
        passed = self._horizon(known.joined_at)
        state = self._state(bucket, passed)
        left, right = known.fresh(chunks, self.halves, self.schemas)
        known.joined_at = max(known.joined_at, moment.watermark_us)
        known.store(bucket)
        state.lefts.append(left.table, passed)
        rights, late = self.readable(pick(right.table, right.seeks), moment)
        state.rights.append(rights)
        horizon = self._horizon(known.joined_at)
        due = state.lefts.load(passed, horizon)
        table, unmatched = (self.layout.result_schema.empty_table(), 0) if due is None else self._given(state, due)
        state.lefts.pass_by(horizon)
        state.lefts.forget(horizon)
        self._pass_by(state, horizon)
        wakeup = state.lefts.next_waiting
        wakeup = None if wakeup is None else wakeup + self.late_us + self.join.ahead_us + 1
        counters = {"unmatched": unmatched} | ({"refused_changes": sum(t.num_rows for t in late)} if late else {})
        refused = pa.concat_tables(late) if late else None
        return StepResult(table, wakeup, state.rows, state.rows, table.num_rows, counters, refused)

    def _given(self, state: _State, due: pa.Table) -> tuple[pa.Table, int]:
        """Return the results of left rows, and how many of them are not given for want of a partner."""
        due = due.combine_chunks()
        candidates = Candidates(due, self.schemas[1], self.layout.key_names)
        seeking = self._seeking(due)
        lefts, places = np.arange(due.num_rows), self.chosen(state, due, candidates, seeking)
        met = places != NOBODY
        if self.join.how == "inner":
            lefts, places = lefts[met], places[met]
        table = results(self.layout, self.names, due, candidates.table(), Pairs(lefts, places), due[TIME].to_numpy()[lefts])
        return table, int(np.count_nonzero(~met)) if self.join.how == "inner" else 0

    def search(self, state: _State, due: pa.Table, candidates: Candidates, seeking: Ints) -> None:
        """Offer the nearest right rows of each side."""
        times, tolerance = due[TIME].to_numpy()[seeking], self.join.tolerance_us
        hashes, apart = due[HASH].to_numpy()[seeking], 0 if self.join.allow_exact else 1
        back = np.full(len(times), UNSET) if tolerance is None else times - tolerance
        backward = Seekers(seeking, WantedSpans(hashes, back, times - apart))
        if self.join.direction != "forward":
            backward.offer_ends(state.rights, candidates, last=True)
            left_over = backward
            if self.join.direction == "backward":  # a row of the log is newer than all that stand
                left_over = backward.only(np.flatnonzero(candidates.places[seeking] == NOBODY))
            standing = state.standing.lookup(sorted_unique(left_over.wanted.hashes))
            if standing.num_rows:
                left_over.offer_all(by_key(standing), candidates)
        if self.join.direction != "backward":
            assert tolerance is not None
            Seekers(seeking, WantedSpans(hashes, times + apart, times + tolerance)).offer_ends(
                state.rights, candidates, last=False
            )

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
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts left rows without their result, and right rows."""
        passed = self._horizon(JoinProgress.of(bucket).joined_at)
        state, keys = self._state(bucket, passed), DeadKeys.of(dead, self.layout.key_names)
        later, newest = state.rights.remove(keys.rows), state.standing.remove(keys.hashes, keys.rows)
        forgotten: int = newest.num_rows + (0 if later is None else later.num_rows)
        gone = state.lefts.remove(keys.rows, passed)
        waiting = 0 if gone is None else int(np.count_nonzero(gone[TIME].to_numpy() >= passed))
        return waiting + forgotten


class VersionedOperator(AsofOperator):
    """Versioned joins (SEMANTICS §16.7): right rows are changes of a table, of which a deletion leaves no partner."""

    join: VersionedJoin

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.operation, VersionedJoin)
        self.join = spec.operation
        self.change, *self.sequence = self.halves[1].own[-len(self.join.unshown) :]

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The columns of each side that results have."""
        left, right = super().names
        return left, right[: -len(self.join.unshown)]

    def readable(self, rows: pa.Table, moment: Moment) -> tuple[pa.Table, list[pa.Table]]:
        """See :class:`AsofOperator`: changes whose operation or sequence is not known are put aside."""
        rows, refused = readable(rows, self.change, self.sequence)
        side = self.layout.own_names[0]
        named = {
            reason: part.append_column(side, pa.repeat(pa.scalar(RIGHT), part.num_rows)) for reason, part in refused.items()
        }
        return rows, [self.layout.refused(part, reason, moment.watermark_us) for reason, part in named.items()]

    def among_equals(self, rows: pa.Table) -> Ints:
        """See :class:`AsofOperator`: the largest sequence, and of one sequence the last to arrive."""
        numbers = super().among_equals(rows)
        if not self.sequence or not rows.num_rows:
            return numbers
        places = np.empty(rows.num_rows, np.int64)
        places[np.lexsort((numbers, row_ranks(rows.select(self.sequence))))] = np.arange(rows.num_rows)
        return places

    def newest(self, rows: pa.Table, over: int, *, oldest: bool = False) -> pa.Table:
        """See :class:`AsofOperator`: a deletion need not be kept once nothing older is left."""
        newest = super().newest(rows, over)
        return newest.filter(newest[self.change]) if oldest else newest

    def chosen(self, state: _State, due: pa.Table, candidates: Candidates, seeking: Ints) -> Ints:
        """See :class:`AsofOperator`: the version that is valid."""
        self.search(state, due, candidates, seeking)
        if self.sequence:
            self._by_sequence(state, due, candidates, seeking)
        places = candidates.places.copy()
        some = np.flatnonzero(places != NOBODY)
        up = candidates.table()[self.change].to_numpy(zero_copy_only=False)[places[some]]
        places[some[~up.astype(np.bool_)]] = NOBODY
        return places

    def _by_sequence(self, state: _State, due: pa.Table, candidates: Candidates, seeking: Ints) -> None:
        """Let of several changes of the time that was found the one count whose sequence is the largest.

        Those that stand are the newest by it already, and older than all of the log.
        """
        some = seeking[candidates.places[seeking] != NOBODY]
        times = candidates.table()[TIME].to_numpy()[candidates.places[some]]
        found = list(state.rights.meeting(WantedSpans(due[HASH].to_numpy()[some], times, times)))
        if not found:
            return
        rows = pa.concat_tables([table for table, _, _ in found])
        begins = np.cumsum([0, *(table.num_rows for table, _, _ in found)])
        rows_at = np.concatenate([at + begin for (_, at, _), begin in zip(found, begins, strict=False)])
        lefts = some[np.concatenate([spans for _, _, spans in found])]
        equal = same_keys(self.layout.key_names, due, rows, Pairs(lefts, rows_at))
        rows_at, lefts = rows_at[equal], lefts[equal]
        order = np.lexsort((self.among_equals(rows)[rows_at], lefts))
        last = order[np.append(lefts[order][1:] != lefts[order][:-1], np.ones(min(len(order), 1), np.bool_))]
        candidates.choose(rows, rows_at[last], lefts[last])


class FeatureOperator(AsofOperator):
    """Features of labels (SEMANTICS §17.3): right rows count from the time on at which a label could have them.

    Their time in the log is that one. Of those that count the newest by its own event time is taken::

        event time       10   20
        published at       12         31
        counts from        13         31        a label at 25 has the row of 10, one at 31 that of 20
    """

    join: FeatureJoin

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.operation, FeatureJoin)
        self.join = spec.operation
        self.at, *self.published = self.halves[1].own[-1 - len(self.join.unshown) :]
        self.kind = time_kind(self.schemas[1], self.at)

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The columns of each side that results have."""
        left, right = super().names
        return left, right[: -len(self.join.unshown)]

    def readable(self, rows: pa.Table, moment: Moment) -> tuple[pa.Table, list[pa.Table]]:
        """See :class:`AsofOperator`: the time of a row becomes that from which on it counts."""
        counts = self._event_times(rows) + (0 if self.join.allow_exact else 1)
        counts = pa.array(np.maximum(counts, rows[TIME].to_numpy()))
        return by_key(rows.set_column(rows.schema.get_field_index(TIME), TIME, counts)), []

    def newest(self, rows: pa.Table, over: int, *, oldest: bool = False) -> pa.Table:
        """See :class:`AsofOperator`: the newest by event time."""
        if over != UNSET:
            rows = rows.filter(pa.array(self._event_times(rows) >= over))
        groups = group([rows[k] for k in self.layout.key_names], rows.num_rows)
        order = np.argsort(self._newness(rows))
        return pick(rows, np.sort(values_at(groups.ids[order], order, groups.n)))

    def search(self, state: _State, due: pa.Table, candidates: Candidates, seeking: Ints) -> None:
        """See :class:`AsofOperator`: in order of the time from which rows count, each label takes the newest so far."""
        hashes, times = due[HASH].to_numpy()[seeking], due[TIME].to_numpy()[seeking]
        sought = sorted_unique(hashes)
        wanted = WantedSpans(sought, np.full(len(sought), UNSET), np.full(len(sought), times.max(initial=UNSET)))
        found = [rows for rows, _, _ in state.rights.meeting(wanted)]
        rows = pa.concat_tables([state.standing.lookup(sought), *found]).combine_chunks()
        n, keys = rows.num_rows, self.layout.key_names
        if not n:
            return
        both = pa.concat_tables([rows.select(keys), pick(due.select(keys), seeking)])
        owners = group([both[key] for key in keys], both.num_rows).ids
        newness, none = self._newness(rows), np.zeros(len(seeking), np.int64)
        label = np.arange(both.num_rows) >= n
        order = np.lexsort((label, np.append(rows[TIME].to_numpy(), times), owners))
        newest = owners[order] * np.int64(n + 1) + np.append(newness + 1, none)[order]
        newest = np.maximum.accumulate(newest) % (n + 1)
        of_newness = np.argsort(newness)
        met = label[order] & (newest > 0)
        rows_at, lefts = of_newness[newest[met] - 1], order[met] - n
        if self.join.tolerance_us is not None:
            young = times[lefts] - self._event_times(rows)[rows_at] <= self.join.tolerance_us
            rows_at, lefts = rows_at[young], lefts[young]
        candidates.choose(rows, rows_at, seeking[lefts])

    def _event_times(self, rows: pa.Table) -> Ints:
        return stamp(whole(rows[self.at]), self.kind).times

    def _newness(self, rows: pa.Table) -> Ints:
        """Return the place of each row among all, from older to newer; of one event time the one that was published last."""
        published = (rows[name].cast(pa.int64()).to_numpy() for name in reversed(self.published))
        places = np.empty(rows.num_rows, np.int64)
        places[np.lexsort((rows[NUMBER].to_numpy(), *published, self._event_times(rows)))] = np.arange(rows.num_rows)
        return places
