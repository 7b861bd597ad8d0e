"""Sessions go on that fire otherwise than before (SEMANTICS §12.3).

Sessions with triggers keep entries by key (:mod:`~krishiv_py.kernels.windows.session.keyed_state`), those without mini-sessions
in queues (:mod:`~krishiv_py.kernels.windows.session.plain`). Here the entries of a bucket are written again, or made from the
queues, or the queues from them; then every key is looked at again when its first session is due.

What state cannot tell is said: totals of rows that no firing has shown are not known where all rows were totalled, and the
other way round, so aggregates of such a session are null, and `complete` is false, until it fires next, or leaves. Results that
are to be withdrawn have to be known; where they are not, the change is refused with the moment from which it works.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.ranges import components
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Mask, flags_at, largest_of, last_rows, pick, values_at, with_column
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.columns.layout import TIME, Layout, noted_whole, of_no_rows, rows_counted
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.timer_queue import DueQueue
from krishiv_py.kernels.state.window_log import HASH, KeyedLog
from krishiv_py.kernels.windows.session.capped_triggered import WRITTEN, CappedTriggeredOperator
from krishiv_py.kernels.windows.session.growing import (
    NEWEST,
    ROWS,
    Sessions,
    Totals,
    TriggeredSessionOperator,
    finished,
    session_arrays,
)
from krishiv_py.kernels.windows.session.keyed_state import (
    CHANGED,
    DONE,
    FINEST_US,
    HELD,
    NUMBER,
    OFTEN,
    STANDING,
    TIMERS,
    UNDER,
    EntryLog,
    KeyEntries,
    SideTable,
    VisitingOperator,
    VisitNumbers,
    each_once,
)
from krishiv_py.kernels.windows.session.plain import SessionOperator, SessionProgress
from krishiv_py.kernels.windows.session.rows import END, FIRED, KIND, SEQ, START
from krishiv_py.plan.durations import END_OF_TIME, UNSET


@attrs.frozen
class SessionsBefore:
    """Say how sessions were kept.

    Attributes
    ----------
    discarding : bool
        Whether results held the rows since the one before.
    withdrew : bool
        Whether results that stand are kept with what they hold.
    watermark_us : int
        The watermark of their last step.
    left_us : int
        Sessions that end up to there have left.
    unknown : str or None
        The mark of sessions whose contents state does not hold as they are wanted now; None where it holds them.
    """

    discarding: bool
    withdrew: bool
    watermark_us: int
    left_us: int
    unknown: str | None = None


def fire_otherwise(spec: OperatorSpec, bucket: Bucket, before: SessionsBefore) -> None:
    """Let sessions with a trigger, without a longest duration, go on by another emission, accumulation, lateness or late rule.

    Raises
    ------
    CheckpointError
        Where results would have to be withdrawn that are not known.
    """
    operator = TriggeredSessionOperator(spec.plain)
    entries = operator.entries
    old = Totals(operator.layout, values=before.withdrew, newest=operator.custom_trigger is not None)
    page = _taken(bucket, old)
    held, numbers = page.held, VisitNumbers.of(bucket)
    sessions = session_arrays(held, entries.partials, discarding=before.discarding)
    shown, waiting = sessions.often > 0, sessions.pending > 0
    under = held[UNDER].to_numpy()
    if operator.retract and not before.withdrew:
        _refuse(spec, shown & waiting, "early results of sessions that have had rows since")
        under = np.where(waiting, -1, numbers.results + np.arange(held.num_rows))
        numbers.results += held.num_rows
    sessions = _as_shown(operator.layout, sessions, before, discarding=operator.discarding)
    if operator.discarding:
        sessions = attrs.evolve(sessions, line=np.where(waiting, sessions.line, -1))
    columns = {name: held[name].to_numpy() for name in (TIME, END, ROWS, NUMBER)} | {UNDER: under}
    if operator.custom_trigger is not None:
        columns[NEWEST] = held[NEWEST].to_numpy()
    numbers.seq += 1
    written = [entries.sessions(_keys(operator.layout, held), columns, sessions, numbers.seq)]
    if operator.retract and before.withdrew:
        kept = page.standing
        columns = {name: kept[name].to_numpy() for name in (TIME, END, UNDER, NUMBER)}
        written.append(entries.standing(_keys(operator.layout, kept), columns, kept, numbers.seq))
    _write(operator, bucket, numbers, written, held, waiting, before)


def fire_capped_otherwise(spec: OperatorSpec, bucket: Bucket, before: SessionsBefore) -> None:
    """Let sessions with a trigger and a longest duration go on by another emission, accumulation, lateness or late rule.

    Their rows are in state, and so is which result each belongs to.
    """
    operator = CappedTriggeredOperator(spec.plain)
    entries = operator.entries
    page = _taken(bucket, entries)
    rows, standing, numbers = page.held, page.standing, VisitNumbers.of(bucket)
    keys = group([rows[name] for name in operator.layout.key_names], rows.num_rows)
    cut = operator.limits.sessions(keys.ids, rows[TIME].to_numpy(), rows[END].to_numpy())
    fired, under = (np.array(rows[name].to_numpy()) for name in (WRITTEN, UNDER))
    waits = flags_at(cut.ids[~fired], cut.n)
    numbers.seq += 1
    if operator.discarding:
        under[:] = -1
        made: list[pa.Table] = []
    elif before.discarding:  # what was shown of a session to its last row is its result
        whole = np.flatnonzero(~waits)
        number = values_at(whole, numbers.results + np.arange(len(whole)), cut.n, -1)
        numbers.results += len(whole)
        under, counts = number[cut.ids], np.bincount(cut.ids, minlength=cut.n)[whole]
        first = last_rows(cut.ids, cut.n, 0)
        heads = _keys(operator.layout, pick(rows, first[whole]))
        made = [entries.standing(heads, cut.starts[whole], cut.ends[whole], counts, number[whole], None, numbers.seq)]
    else:
        contents: pa.Table | None = standing
        if operator.retract and not before.withdrew:
            place = np.searchsorted(standing[UNDER].to_numpy(), under[under >= 0])
            counted = np.bincount(place, minlength=standing.num_rows)
            _refuse(spec, counted < standing[OFTEN].to_numpy(), "results of sessions of which rows have left")
            partials = operator.layout.create(pick(rows, np.flatnonzero(under >= 0)), place, standing.num_rows)
            contents = pa.Table.from_arrays(partials, schema=pa.schema(operator.layout.partial_fields))
        starts, ends, counts, number = (standing[name].to_numpy() for name in (TIME, END, OFTEN, UNDER))
        kept = contents if operator.retract else None
        made = [entries.standing(_keys(operator.layout, standing), starts, ends, counts, number, kept, numbers.seq)]
    done, often = rows[DONE].to_numpy(zero_copy_only=False), rows[OFTEN].to_numpy()
    written = [entries.rewritten(rows, numbers.seq, fired, done, often, under), *made]
    held = _keys(operator.layout, rows).append_column(END, pa.array(cut.ends[cut.ids]))
    _write(operator, bucket, numbers, written, held, waits[cut.ids], before)


def with_trigger(spec: OperatorSpec, bucket: Bucket, before: SessionsBefore) -> None:
    """Let sessions that had no trigger fire by one, or by another accumulation.

    The rows that a session holds count where an aggregate counts all of them, else they are one; see
    :func:`~krishiv_py.kernels.windows.fixed.going_on.with_log`.

    Raises
    ------
    CheckpointError
        Where results would have to be withdrawn that are not known.
    """
    operator, plain = TriggeredSessionOperator(spec.plain), SessionOperator(spec.plain)
    layout, numbers = operator.layout, VisitNumbers()
    waiting, over = _queues(plain, bucket)
    for name in attrs.fields_dict(SessionProgress):
        bucket.meta.pop(name, None)
    rows = pa.concat_tables([waiting, over])
    has_fired = np.arange(rows.num_rows) >= waiting.num_rows
    order = stable_order(rows[SEQ].to_numpy())
    rows, has_fired = pick(rows, order), has_fired[order]
    groups = group([rows[name] for name in layout.key_names], rows.num_rows)
    parts = components(groups.ids, rows[START].to_numpy(), rows[END].to_numpy(), touching=plain.rows.touching)
    data = rows[KIND].to_numpy() == HELD
    held = plain.rows.merge(rows.filter(pa.array(data)), parts.ids[data], parts.n)
    often = largest_of(parts.ids, rows[FIRED].to_numpy(), parts.n, 0)
    done = flags_at(parts.ids[has_fired], parts.n)
    changed = (often > 0) & ~done
    counted = rows_counted(layout)
    count = np.ones(parts.n, np.int64) if counted is None else np.maximum(held[counted].to_numpy(), 1)
    every = operator.trigger.early if isinstance(operator.trigger.early, int) else END_OF_TIME
    rest = count % every  # where it would have fired with the last row it does with the next one
    pending = np.where(done, 0, np.where(changed, 1, np.where(rest == 0, every, rest)))
    stand = rows.filter(pa.array(~data))
    under = np.full(parts.n, -1)
    if operator.retract:
        if not before.withdrew:
            _refuse(spec, changed, "sessions that have fired and have had rows since")
        under = np.where(done, np.arange(parts.n), -1)
        numbers.results = parts.n + stand.num_rows
    partials = held.select(operator.entries.partials.names)
    line = np.where(pending > 0, np.arange(parts.n), -1) if operator.discarding else np.arange(parts.n)
    sessions = _marked(layout, Sessions(pending, often, done, partials, line), ~(changed & operator.discarding), before.unknown)
    numbers.seq, numbers.rows = 1, parts.n
    keys = held.select([HASH, *layout.key_names])
    columns = {TIME: held[START].to_numpy(), END: held[END].to_numpy(), ROWS: count, NUMBER: np.arange(parts.n), UNDER: under}
    written = [operator.entries.sessions(keys, columns, sessions, numbers.seq)]
    if operator.retract and stand.num_rows:
        columns = {
            TIME: stand[START].to_numpy(),
            END: stand[END].to_numpy(),
            UNDER: parts.n + np.arange(stand.num_rows),
            NUMBER: parts.ids[~data],
        }
        written.append(operator.entries.standing(_keys(layout, stand), columns, finished(layout, stand), numbers.seq))
    _write(operator, bucket, numbers, written, held, pending > 0, before)


def without_trigger(spec: OperatorSpec, bucket: Bucket, before: SessionsBefore) -> None:
    """Let sessions go on without their trigger.

    Raises
    ------
    CheckpointError
        Where results would have to be withdrawn that are not known.
    """
    operator = SessionOperator(spec.plain)
    layout = operator.layout
    old = Totals(layout, values=before.withdrew)
    page = _taken(bucket, old)
    held = page.held
    sessions = session_arrays(held, old.partials, discarding=before.discarding)
    shown, waits = sessions.often > 0, sessions.pending > 0
    if operator.mode == "retractions":
        _refuse(spec, shown & waits, "early results of sessions that have had rows since")
    sessions = _as_shown(layout, sessions, before, discarding=False)
    n, ends = held.num_rows, held[END].to_numpy()
    contents = pick(sessions.partials, sessions.line)
    extra = [held[NUMBER].to_numpy() + 1, sessions.often, np.full(n, HELD, np.int8), ends]
    arrays = [held[HASH], held[TIME], held[END], *(held[name] for name in layout.key_names), *contents.columns]
    rows = pa.Table.from_arrays([*arrays, *map(pa.array, extra)], schema=operator.stored)
    over = (ends <= before.watermark_us) & ~waits if operator.keeps_fired else np.zeros(n, np.bool_)
    waiting = rows.filter(pa.array(~over))
    if operator.mode == "retractions":
        standing = rows.filter(pa.array(shown & ~over))
        kinds = pa.repeat(pa.scalar(STANDING, pa.int8()), standing.num_rows)
        waiting = pa.concat_tables([waiting, with_column(standing, KIND, kinds)])
    for name in attrs.fields_dict(VisitNumbers):
        bucket.meta.pop(name, None)
    progress = SessionProgress(fired_at=before.watermark_us, closed_at=before.left_us)
    progress.seq = int(rows[SEQ].to_numpy().max(initial=0))
    progress.store(bucket)
    skeleton = SideTable(bucket, progress.closed_at, touching=operator.rows.touching)
    skeleton.append(rows[HASH].to_numpy(), rows[START].to_numpy(), ends)
    DueQueue(bucket, "w", operator.finest_us).insert(waiting, progress.fired_at)
    DueQueue(bucket, "f", operator.finest_us).insert(rows.filter(pa.array(over)), progress.closed_at)


def _keys(layout: Layout, rows: pa.Table) -> pa.Table:
    """Return hash and key of each row."""
    return rows.select([HASH, *layout.key_names])


def _taken(bucket: Bucket, entries: EntryLog) -> KeyEntries:
    """Take the living entries, and when keys are looked at, out of a bucket."""
    log = KeyedLog(bucket, "k", entries.schema, entries.compact)
    page = entries.page(log.everything())
    log.clear()
    KeyedLog(bucket, "i", CHANGED, each_once).clear()
    DueQueue(bucket, "w", FINEST_US).pop(END_OF_TIME)
    return page


def _queues(operator: SessionOperator, bucket: Bucket) -> tuple[pa.Table, pa.Table]:
    """Take the mini-sessions that wait, and the sessions that have fired, out of a bucket."""
    SideTable(bucket, UNSET, touching=operator.rows.touching).clear()
    queues = (DueQueue(bucket, name, operator.finest_us) for name in ("w", "f"))
    waiting, over = (pa.concat_tables([operator.stored.empty_table(), *queue.pop(END_OF_TIME)]) for queue in queues)
    return waiting, over


def _as_shown(layout: Layout, sessions: Sessions, before: SessionsBefore, *, discarding: bool) -> Sessions:
    """Give sessions the contents that are shown from now on, and note where state does not hold them."""
    shown, whole = sessions.often > 0, np.ones(len(sessions.often), np.bool_)
    if before.discarding and not discarding:  # what was shown is not held: it counts as the contents of no rows
        whole = ~shown
        line = np.where(sessions.line < 0, sessions.partials.num_rows, sessions.line)
        sessions = attrs.evolve(sessions, partials=pa.concat_tables([sessions.partials, of_no_rows(layout)]), line=line)
    elif discarding and not before.discarding:
        whole = ~(shown & (sessions.pending > 0))
    return _marked(layout, sessions, whole, before.unknown)


def _marked(layout: Layout, sessions: Sessions, whole: Mask, mark: str | None) -> Sessions:
    """Note which sessions are whole, in the mark for that and in those that results show."""
    if mark is None:
        return sessions
    partials = pick(sessions.partials, pa.array(sessions.line, mask=sessions.line < 0))
    partials = noted_whole(layout, partials, whole, mark)
    return attrs.evolve(sessions, partials=partials, line=np.where(sessions.line < 0, -1, np.arange(len(whole))))


def _refuse(spec: OperatorSpec, unknown: Mask, got: str) -> None:
    """Refuse to withdraw results that are not known."""
    if unknown.any():
        then = "their first result would stand next to the next one"
        hint = "make the savepoint once the watermark has passed these sessions, or keep the emission"
        raise CheckpointError(f"results of {spec.name} cannot be withdrawn yet", got=got, then=then, hint=hint)


def _write(
    operator: VisitingOperator,
    bucket: Bucket,
    numbers: VisitNumbers,
    written: Sequence[pa.Table],
    held: pa.Table,
    waiting: Mask,
    before: SessionsBefore,
) -> None:
    """Write entries into a bucket; each key is looked at when its first session is due.

    `held` has key and end of each session or row, `waiting` says which have rows that no firing has shown.
    """
    layout, ends = operator.layout, held[END].to_numpy()
    keys = group([held[name] for name in layout.key_names], held.num_rows)
    coming = np.full(keys.n, END_OF_TIME)
    moments = operator.moments(ends, waiting & (ends <= before.watermark_us), before.watermark_us)
    np.minimum.at(coming, keys.ids, moments)
    heads = pick(_keys(layout, held), keys.first)
    operator.log(bucket).append(pa.concat_tables([*written, operator.entries.marks(heads, coming, numbers.seq)]))
    DueQueue(bucket, "w", FINEST_US).insert(pa.Table.from_arrays([heads[HASH], pa.array(coming)], schema=TIMERS), UNSET)
    if operator.trigger._period_us is not None:
        KeyedLog(bucket, "i", CHANGED, each_once).append(heads.select([HASH]))
    numbers.store(bucket)
