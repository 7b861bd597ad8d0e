"""The state, the sources and the clocks of a savepoint as another plan goes on from them (SEMANTICS §12.2 to §12.4)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import distinct, key_hashes
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.aggregates import AggKernel, Rows
from krishiv_py.kernels.columns.layout import SIGN, TIME, Layout
from krishiv_py.kernels.joins.sides import columns_of
from krishiv_py.kernels.lanes import renamed_lane, source_of_lane
from krishiv_py.kernels.ordered import LOOK
from krishiv_py.kernels.state.key_table import HAS_STATE, STATE_FIELD
from krishiv_py.kernels.state.spread import BucketContent, is_of_numbers, side_of, spread
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import BOUNDS_IN_KEY, HASH
from krishiv_py.kernels.ttl import OF_SIDES, begin_ttl
from krishiv_py.kernels.watermark import ONLY, ClockSpec, WatermarkTracker, tracker_facts
from krishiv_py.kernels.windows.count import without_rows
from krishiv_py.kernels.windows.fixed.going_on import with_log, with_rows_of_their_own, with_unknown_totals, without_log
from krishiv_py.kernels.windows.fixed.triggered import inside_of
from krishiv_py.kernels.windows.ranged.distinct import counting_from
from krishiv_py.kernels.windows.session.capped import look_again
from krishiv_py.kernels.windows.session.capped_triggered import WRITTEN
from krishiv_py.kernels.windows.session.going_on import (
    SessionsBefore,
    fire_capped_otherwise,
    fire_otherwise,
    with_trigger,
    without_trigger,
)
from krishiv_py.kernels.windows.session.growing import value_schema
from krishiv_py.kernels.windows.session.plain import go_on_as
from krishiv_py.plan.aggregates.selections import HIDDEN
from krishiv_py.plan.durations import END_OF_TIME, UNSET, show_instant
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.evolution import (
    CarriedState,
    Frontiers,
    StageChange,
    former_name,
    is_hidden,
    keys_of,
    late_rule_of,
    marks_whole,
    paired,
    shows_otherwise,
)
from krishiv_py.planner.explain import input_text, shape_of
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.savepoints import Savepoint
from krishiv_py.types import type_text

_PART: Final = re.compile(r"p\d+_\d+")
_TTL: Final = ("touched", "ttl", "touch", *(name for names in OF_SIDES for name in (names.log, names.queue)))
_TTL_CHECKED: Final = ("ttl_checked", *(names.checked for names in OF_SIDES))


@attrs.frozen
class StageBefore:
    """Say how the state of a stage was kept.

    Attributes
    ----------
    plan : StagePlan
        The stage as it goes on.
    shape : dict or None
        The shape that its state was kept in; None: as it is kept now.
    number : int
        The number of the stage in the folder.
    frontiers : Frontiers or None
        Up to where it has come; None with `shape`.
    """

    plan: StagePlan
    shape: dict[str, Any] | None
    number: int
    frontiers: Frontiers | None


@attrs.define(kw_only=True)
class EvolvedSavepoint(Savepoint):
    """A savepoint as another plan reads it: the stages are those of that plan.

    Attributes
    ----------
    plans : list of StageBefore
        How the state of each stage was kept.
    streams_before : dict
        The number in the folder of each stream that is read, for those that are there.
    past : Savepoint or None
        The savepoint of a run of that plan over archives.
    rebuilt : frozenset of int
        The stages that have their state from there.
    """

    plans: list[StageBefore]
    streams_before: dict[int, int]
    past: Savepoint | None = None
    rebuilt: frozenset[int] = frozenset()

    def buckets_of(self, stage: int, *, mapped: bool = False) -> Iterator[BucketContent]:
        """See Savepoint; what is rewritten is in memory."""
        if self.past is not None and stage in self.rebuilt:
            yield from self.past.buckets_of(stage, mapped=mapped)
            return
        before = self.plans[stage]
        for bucket in self.stages[stage].buckets:
            held = self.bucket(before.number, bucket, mapped=mapped)
            if before.shape is not None and before.frontiers is not None:
                held = migrated(held, before.shape, before.plan, before.frontiers)
            yield held

    def names_of(self, source: int) -> list[tuple[str, int]]:
        """Return the files that a stream has read, by its number in the plan."""
        return super().names_of(self.streams_before[source])


def carried_over(
    was: Mapping[str, Any], stage: StagePlan, clocks: ClocksGoOn, savepoint: Savepoint, number: int
) -> CarriedState:
    """Return what a stage carries along when it takes state that was kept as `was` says.

    Parameters
    ----------
    was : dict
        The shape of the stage before.
    stage : StagePlan
        The stage, which carries nothing yet.
    clocks : ClocksGoOn
        How the clocks go on.
    savepoint : Savepoint
        Where the state is.
    number : int
        The number of the stage there.

    Raises
    ------
    CheckpointError
        Where results have to be withdrawn that state does not hold.
    """
    now, frontiers = shape_of(stage), savepoint.frontiers(number)
    reached_us = frontiers.stepped_us
    pairs = paired(was["aggregates"], now["aggregates"])
    names = {was["aggregates"][index]["name"]: now["aggregates"][number]["name"] for number, index in pairs.items()}
    wholes = [[whole, [names[name] for name in of if name in names]] for whole, of in was["wholes"]]
    wholes = [[whole, of] for whole, of in wholes if of]
    added = [agg["name"] for number, agg in enumerate(now["aggregates"]) if number not in pairs and not marks_whole(agg)]
    shown = [agg["name"] for agg in now["aggregates"] if not marks_whole(agg)]
    for partial in (added, shown if shows_otherwise(was, now) else []):
        if partial:
            wholes.append([f"{HIDDEN}{1 + _newest_mark(was, wholes)}", partial])
    early_us = _early_until(was, now, stage, savepoint, number)
    if early_us > reached_us and now["emit"] == "retractions":
        raise CheckpointError(
            f"results of {stage.spec.name} cannot be withdrawn yet",
            got="early results of windows that have not ended, given by a trigger that an earlier change removed",
            then="they would stand next to the result at the end",
            hint=f"make the savepoint once the watermark has passed {show_instant(early_us)}, or emit updates until then",
        )
    return CarriedState(
        wholes,
        was["blind_us"],
        frontiers.left_beyond_options(now),
        early_us if early_us > reached_us else UNSET,
        frontiers.results_beyond_options(now),
        reached_us if reached_us > stage.times.least(clocks.current) else UNSET,
    )


def _newest_mark(was: Mapping[str, Any], wholes: Sequence[Sequence[Any]]) -> int:
    """Return the largest number that a mark has."""
    return max((int(mark.rpartition("_")[2]) for mark, _ in (*was["wholes"], *wholes)), default=0)


def _early_until(was: Mapping[str, Any], now: Mapping[str, Any], stage: StagePlan, savepoint: Savepoint, number: int) -> int:
    """Return up to which end windows may have early results that state does not hold."""
    early_us = int(was.get("early_us", UNSET))
    if "firings" in was["fixed"] and "firings" not in now["fixed"]:
        grid, buckets = inside_of(stage.spec).operation.extent.grid, savepoint.stages[number].buckets
        if grid is None:  # sessions note how often each has fired
            return early_us
        begins = [int(window) for bucket in buckets for window in savepoint.known(number, bucket).get("runs:w", ())]
        early_us = max([early_us, *(begin + grid.size_us for begin in begins)])
    return early_us


def migrated(held: BucketContent, was: Mapping[str, Any], stage: StagePlan, frontiers: Frontiers) -> BucketContent:
    """Return a bucket as another plan keeps it."""
    meta, tables = dict(held.meta), dict(held.tables)
    now = shape_of(stage)
    if was["ttl"] is not None and now["ttl"] is None and held.meta.get("runs:grave"):
        got = f"windows of {stage.spec.name} that lost rows to it are in state"
        hint = "make the savepoint once these windows are over, or keep the time to live"
        raise CheckpointError("the time to live cannot be removed yet", got=got, then="they would look whole", hint=hint)
    if was["ttl"] not in (None, now["ttl"]):
        meta = {name: value for name, value in meta.items() if name.partition(":")[2] not in _TTL and name not in _TTL_CHECKED}
        tables = {name: t for name, t in tables.items() if name.partition("/")[0] not in _TTL}
    if (was["lateness_us"], was["emit"]) != (now["lateness_us"], now["emit"]):
        once = {"fired_at": now["emit"] == "final", "joined_at": True}
        meta |= {name: frontiers.fired(meta[name], now, once=only) for name, only in once.items() if name in meta}
    table = _Tables(was, stage)
    tables = {name: table.of(rows, side_of(name)) for name, rows in tables.items()}
    if was["fixed"].get("window kind") == "distinct":
        tables = {name: counting_from(rows, refuses=stage.spec.options.state_refuses) for name, rows in tables.items()}
    if keys_of(was) != keys_of(now):
        moved = BucketContent(meta, _rehashed(tables, stage.layout))
        (content,) = spread([moved], len(stage.spec.keys), 1)  # logs are in order of the hashes
        meta, tables = content.meta, dict(content.tables)
    bucket = BucketContent(meta, tables).bucket()
    if now["ttl"] is not None and now["ttl"] != was["ttl"]:
        begin_ttl(stage.spec, bucket, _keys_in(tables, stage.layout))
    _go_on(stage, bucket, was, now, frontiers)
    return BucketContent.of(bucket)


def _go_on(stage: StagePlan, bucket: Bucket, was: Mapping[str, Any], now: Mapping[str, Any], frontiers: Frontiers) -> None:
    """Let a bucket go on under another emission, late rule, lateness or trigger."""
    spec, route = stage.spec, stage.spec.operation.route
    if spec.changes and spec.operation.nature.opens_windows:
        return  # rows are kept, and what was given follows from them
    logged, logs = ("firings" in shape["fixed"] for shape in (was, now))
    of_other_rules = (was["emit"], late_rule_of(was)) != (now["emit"], late_rule_of(now))
    of_other_lateness = was["lateness_us"] != now["lateness_us"]
    final_until_now = was["emit"] == "final" and frontiers.final  # else no batch has run with final results
    unknown = spec.wholes[-1][0] if shows_otherwise(was, now) else None
    discarded = was["fixed"].get("firings", "").endswith("discarding")
    discards = spec.options.accumulation == "discarding"
    if route in ("session", "capped session") and (logged or logs):
        if (discarded, logged) != (discards, logs) or of_other_rules or of_other_lateness:
            withdrew = was["emit"] == "retractions" and not discarded
            goes_on = _SESSIONS[route == "capped session", logged, logs]
            goes_on(spec, bucket, SessionsBefore(discarded, withdrew, frontiers.stepped_us, frontiers.left_us, unknown))
        return
    if unknown is not None:
        with_unknown_totals(spec, bucket, unknown)
    if route == "count":
        if logged and not logs:
            without_rows(spec, bucket)
    elif logged != logs:
        if logs:
            with_log(spec, bucket, frontiers.left_us, frontiers.given_us)
        else:
            without_log(spec, bucket, frontiers.given_us)
    elif logs and "runs:sl" in bucket.meta:
        with_rows_of_their_own(spec, bucket, frontiers.given_us)
    elif route == "session" and not logs and (of_other_rules or of_other_lateness) and "fired_at" in bucket.meta:
        go_on_as(spec, bucket, UNSET if final_until_now or was["emit"] != "final" else frontiers.given_us)
    elif route == "capped session" and not logs and (of_other_rules or of_other_lateness):
        look_again(spec, bucket, was["lateness_us"] if was["emit"] == "final" else 0, stale=final_until_now)


_SESSIONS: Final = {
    (False, True, True): fire_otherwise,
    (False, False, True): with_trigger,
    (False, True, False): without_trigger,
    (True, True, True): fire_capped_otherwise,
}
"""The ways in which sessions go on, by whether they have a longest duration, had a trigger, and have one."""


def _rehashed(tables: Mapping[str, pa.Table], layout: Layout) -> dict[str, pa.Table]:
    """Give keys their new types, and write the hashes of these in all tables."""
    rewritten, old, new = dict(tables), [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, table in tables.items():
        for key in layout.key_fields:
            if key.name in table.column_names:
                column = table.column_names.index(key.name)
                table = table.set_column(column, key, _cast(table[key.name], key.type))
        if HASH in table.column_names and all(name in table.column_names for name in layout.key_names):
            bounds = [name for name in BOUNDS_IN_KEY if name in table.column_names]
            hashes = key_hashes([table[key] for key in (*layout.key_names, *bounds)], table.num_rows)
            old.append(table[HASH].to_numpy())
            new.append(hashes)
            column = table.column_names.index(HASH)
            table = table.set_column(column, table.schema.field(column), pa.array(hashes))
        rewritten[name] = table
    known, first = np.unique(np.concatenate(old), return_index=True)
    values = np.concatenate(new)[first]
    for name, table in rewritten.items():
        alone = HASH in table.column_names and not any(key in table.column_names for key in layout.key_names)
        if not alone or is_of_numbers(name):
            continue
        hashes = table[HASH].to_numpy()
        place = np.minimum(np.searchsorted(known, hashes), max(len(known) - 1, 0))
        there = known[place] == hashes if len(known) else np.zeros(len(hashes), np.bool_)
        column = table.column_names.index(HASH)
        values_of = pa.array(np.where(there, values[place] if len(known) else 0, hashes))
        rewritten[name] = table.set_column(column, table.schema.field(column), values_of)
    return rewritten


def _keys_in(tables: Mapping[str, pa.Table], layout: Layout) -> pa.Table:
    """Return the keys in some tables, each once."""
    names = layout.key_names
    rows = [pa.Table.from_batches([], pa.schema(layout.key_fields))]
    rows += [table.select(names).cast(rows[0].schema) for table in tables.values() if set(names) <= set(table.column_names)]
    return distinct(pa.concat_tables(rows), list(names))


class _Tables:
    """Rewrites tables."""

    def __init__(self, was: Mapping[str, Any], stage: StagePlan) -> None:
        self.was, self.now, self.stage = was, shape_of(stage), stage
        self.layout = stage.layout
        self.pairs = paired(was["aggregates"], self.now["aggregates"])
        self.inputs = [input_text(value, where) for value, where in self.layout.inputs]
        self.flags = self._flags()

    def _flags(self) -> dict[int, bool]:
        """Return inputs of hidden aggregates that rows from before have, by number."""
        flags = {}
        for number, index in enumerate(self.layout.input_of):
            agg = self.now["aggregates"][number]
            if index is not None and marks_whole(agg) and not (is_hidden(agg) and number in self.pairs):
                flags[index] = not is_hidden(agg)
        return flags

    def of(self, rows: pa.Table, side: str | None = None) -> pa.Table:
        """Return a table with the columns of the new plan; of a join it is one of a `side`."""
        names = rows.column_names
        if HAS_STATE in names:
            return self._state(rows)
        blocks: dict[int, list[tuple[pa.Field, Any]]] = {}
        gone: set[str] = set()
        parts = [name for name in names if _PART.fullmatch(name)]
        if parts:
            gone.update(parts)
            blocks[names.index(parts[0])] = self._parts(rows)
        if values := [name for name in names if re.fullmatch(r"v\d+", name)]:
            gone.update(values)
            blocks[names.index(values[0])] = self._values(rows)
        rows_too = not parts or WRITTEN in names
        if rows_too and TIME in names and set(self.was["row"]) - set(_riders(self.was)) <= set(names):
            old = [f"a{n}" for n in range(len(self.was["inputs"]))]
            gone.update(old)
            keys = [i for i, name in enumerate(names) if re.fullmatch(r"k\d+", name)]
            place = names.index(old[0]) if old else names.index(parts[0]) if parts else 1 + (keys or [names.index(TIME)])[-1]
            blocks[place] = self._inputs(rows) + blocks.get(place, [])
        own = [name for name in names if re.fullmatch(r"r\d+", name)]
        of_side = side is not None and "n" in names
        if of_side or (own and len(own) == len(self.was["own"])):
            gone.update(own)
            keys = [i for i, name in enumerate(names) if re.fullmatch(r"k\d+", name)]
            place = names.index(own[0]) if own else 1 + (keys[-1] if keys else names.index("n"))
            blocks[place] = blocks.get(place, []) + self._own(rows, side)
        if not gone and not blocks:
            return rows
        fields: list[pa.Field] = []
        columns: list[Any] = []
        for index in range(len(names) + 1):
            for field, column in blocks.get(index, ()):
                fields.append(field)
                columns.append(column)
            if index < len(names) and names[index] not in gone:
                fields.append(rows.schema.field(index))
                columns.append(rows.column(index))
        return pa.Table.from_arrays(columns, schema=pa.schema(fields, rows.schema.metadata))

    def _state(self, rows: pa.Table) -> pa.Table:
        """Return the state of keys with the fields of the new class: the default where the old one had none."""
        names = [name for name in rows.column_names if not name.startswith(STATE_FIELD)]
        place = names.index(LOOK)
        before, after = ([(rows.schema.field(n), rows[n]) for n in part] for part in (names[:place], names[place:]))
        operation = self.stage.spec.operation
        state, had = operation.state, [n.removeprefix(STATE_FIELD) for n in rows.column_names if n.startswith(STATE_FIELD)]
        for field in operation.state_fields:
            name = f"{STATE_FIELD}{field.name}"
            if (former := former_name(field.name, had, operation.renamed_fields)) in had:
                column = _cast(rows[f"{STATE_FIELD}{former}"], field.type)
            else:
                assert state is not None
                default = pa.array(state.written([state.new()])[field.name], field.type)
                none = pc.if_else(rows[HAS_STATE], pa.scalar(0), pa.scalar(None, pa.int64()))
                column = default.take(none.combine_chunks())
            before.append((field.with_name(name), column))
        fields, columns = zip(*before, *after, strict=True)
        return pa.Table.from_arrays(list(columns), schema=pa.schema(list(fields)))

    def _parts(self, rows: pa.Table) -> list[tuple[pa.Field, Any]]:
        fields = {field.name: field for field in self.layout.partial_fields}
        columns = []
        for number, (names, kernel) in enumerate(zip(self.layout.partial_names, self.layout.kernels, strict=True)):
            index, agg = self.pairs.get(number), self.now["aggregates"][number]
            if index is not None:
                old = [rows[f"p{index}_{n}"].combine_chunks() for n in range(len(self.was["aggregates"][index]["parts"]))]
                new = _widened(old, kernel)
                if marks_whole(agg) and not is_hidden(agg):  # of earlier versions, which noted it here
                    new = [_all(True, rows.num_rows)]
            elif marks_whole(agg):
                new = [_all(not is_hidden(agg), rows.num_rows)]
            else:
                new = _empty(kernel, self._input_type(number), rows.num_rows)
            columns += [(fields[n], column) for n, column in zip(names, new, strict=True)]
        return columns

    def _values(self, rows: pa.Table) -> list[tuple[pa.Field, Any]]:
        """Return what results that stand were given: null for aggregates that they did not have."""
        columns = []
        for number, field in enumerate(value_schema(self.layout)):
            index, agg = self.pairs.get(number), self.now["aggregates"][number]
            if index is not None:
                columns.append((field, _cast(rows[f"v{index}"], field.type)))
            else:
                column = _all(not is_hidden(agg), rows.num_rows) if marks_whole(agg) else pa.nulls(rows.num_rows, field.type)
                columns.append((field, column))
        return columns

    def _input_type(self, number: int) -> pa.DataType | None:
        index = self.layout.input_of[number]
        return None if index is None else self.layout.row_schema.field(f"a{index}").type

    def _inputs(self, rows: pa.Table) -> list[tuple[pa.Field, Any]]:
        known = {text: f"a{n}" for n, text in enumerate(self.was["inputs"])}
        columns = []
        for i, text in enumerate(self.inputs):
            field = self.layout.row_schema.field(f"a{i}")
            if i in self.flags and not self.flags[i]:
                column: Any = _all(False, rows.num_rows)
            elif i in self.flags and text not in known:
                column = _all(True, rows.num_rows)
            elif text in known:
                column = _cast(rows[known[text]], field.type)
            else:
                column = pa.nulls(rows.num_rows, field.type)
            columns.append((field, column))
        return columns

    def _own(self, rows: pa.Table, side: str | None) -> list[tuple[pa.Field, Any]]:
        known = {name: f"r{n}" for n, name in enumerate(self.was["own"])}
        mine = slice(None) if side is None else columns_of(self.layout, side)
        columns = []
        every = list(zip(self.layout.own_names, self.layout.own, self.layout.own_fields, strict=True))
        for own, name, field in every[mine]:
            column = (
                _cast(rows[known[name]], field.type)
                if known.get(name) in rows.column_names
                else pa.nulls(rows.num_rows, field.type)
            )
            columns.append((field.with_name(own), column))
        return columns


def _riders(was: Mapping[str, Any]) -> list[str]:
    """Return columns of working rows that state does not keep."""
    return [name for name in was["row"] if name in ("__d", "__g", "__ws", "__we", SIGN) or re.fullmatch(r"[lr]\d+", name)]


def _all(value: bool, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), n)


def _empty(kernel: AggKernel, type_: pa.DataType | None, n: int) -> list[pa.Array]:
    """Partials of no rows."""
    none = np.empty(0, np.int64)
    return kernel.create(Rows(None if type_ is None else pa.array([], type_), none, none, n))


def _cast(column: Any, type_: pa.DataType) -> Any:
    """Return values in a wider type.

    Raises
    ------
    CheckpointError
        Where a value has too many digits for it.
    """
    try:
        return _cast_exactly(column, type_)
    except pa.ArrowException as problem:
        what = "a value of the state does not fit its new type"
        hint = "use a type with more digits"
        raise CheckpointError(
            what, got=f"{type_text(column.type)} becomes {type_text(type_)}", then="it would be lost", hint=hint
        ) from problem


def _cast_exactly(column: Any, type_: pa.DataType) -> Any:
    """Return values in a wider type; Arrow takes whole numbers as decimals of so many digits only."""
    if pa.types.is_integer(column.type) and pa.types.is_decimal(type_):
        digits = len(str(2**column.type.bit_width))
        return column.cast(pa.decimal128(digits, 0)).cast(type_)
    return column.cast(type_)


def _widened(parts: list[pa.Array], kernel: AggKernel) -> list[pa.Array]:
    """Return partials in the types of a kernel of the same aggregate over wider values.

    Raises
    ------
    CheckpointError
        Where partials of one kind cannot become those of the other.
    """
    types = kernel.partial_types
    if [part.type for part in parts] == types:
        return parts
    if len(parts) == len(types) + 1 and pa.types.is_decimal(types[0]) and pa.types.is_integer(parts[0].type):
        low, wraps, *rest = parts  # of sums of integers, which note how often they left 64 bits
        whole = [None if v is None else v + (w << 64) for v, w in zip(low.to_pylist(), wraps.to_pylist(), strict=True)]
        scale = types[0].scale
        shifted = pa.array([None if v is None else v * 10**scale for v in whole], pa.decimal256(76, 0))
        exact = pa.Array.from_buffers(types[0], len(shifted), shifted.buffers(), shifted.null_count)
        return [exact, *(part.cast(t) for part, t in zip(rest, types[1:], strict=True))]
    try:
        if len(parts) == len(types):
            return [_cast_exactly(part, type_) for part, type_ in zip(parts, types, strict=True)]
    except pa.ArrowException:
        pass
    raise CheckpointError(
        "an aggregate cannot go on over values of another type",
        got=f"{', '.join(type_text(p.type) for p in parts)} for {', '.join(map(type_text, types))}",
        then="its value so far would be lost",
        hint="widen types only (int, bigint, decimal; float, double), or give the aggregate over the new type another name",
    )


def sources_paired(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[int, int]:
    """Return which stream of a plan is which stream of an older one: by name, by where it reads, then the only ones left.

    Parameters
    ----------
    old, new : dict
        The outlines of both.

    Raises
    ------
    CheckpointError
        When an earlier version of the library did not note the names of the sources, and there are other sources now.
    """
    after, count = new["reads"], len(old["sources"])
    if "reads" not in old:
        if count != len(after):
            raise CheckpointError(
                "the plan reads another number of sources than the savepoint has",
                got=f"{len(after)} sources for {count}, written by an earlier version that noted no names of sources",
                then="positions could not be matched",
                hint="start the plan of the savepoint once with this version, and make the savepoint again",
            )
        return {number: number for number in range(count)}
    before, pairs = old["reads"], dict[int, int]()

    def pair(number: int, alike: list[int]) -> None:
        free = [n for n in alike if n not in pairs.values() and old["sources"][n] == new["sources"][number]]
        if number not in pairs and free:
            pairs[number] = free[0]

    for number, read in enumerate(after):
        pair(number, [n for n, other in enumerate(before) if read["name"] and other["name"] == read["name"]])
    for number, read in enumerate(after):
        pair(number, [n for n, other in enumerate(before) if read["place"] and other["place"] == read["place"]])
    only = [_only_stage(outline) for outline in (old, new)]
    for number, read in enumerate(after):
        alike = [n for n, other in enumerate(before) if count == len(after) and not (other["name"] or read["name"])]
        pair(number, alike or [n for n, name in only[0].items() if name == only[1].get(number) and not read["source"]])
    return pairs


def _only_stage(outline: Mapping[str, Any]) -> dict[int, str]:
    """Return the stage of each stream that is the only one of its stage, by the number of the stream."""
    stages = [read["stage"] for read in outline["reads"]]
    return {n: outline["stages"][stage]["name"] for n, stage in enumerate(stages) if stages.count(stage) == 1}


def source_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[StageChange]:
    """Return which sources were added and removed, of two outlines."""
    pairs = sources_paired(old, new)
    called = [_called(read) for read in new["reads"]]
    changes = [
        StageChange(
            name,
            "added",
            ("read from its beginning; the watermark waits for its first row unless its `initial` says otherwise",),
        )
        for number, name in enumerate(called)
        if number not in pairs
    ]
    for number, read in enumerate(old.get("reads", ())):
        if number not in pairs.values():
            changes.append(StageChange(_called(read), "removed", ("nobody waits for it; its position is left aside",)))
    return changes


def _called(read: Mapping[str, Any]) -> str:
    return f"source {read['name'] or read['place'] or 'without a name'}"


@attrs.frozen
class ClocksGoOn:
    """Say how the clocks of a savepoint go on.

    Attributes
    ----------
    clocks : dict
        The clocks, as :meth:`Clocks.saved` gives them.
    before : list of int
        What was in force in the last step, by every clock.
    newest : list of int
        The largest event time that came, by every clock, µs; ``UNSET`` where none came.
    current : list of int
        What was in force after the last step by every clock, before other lags are looked at.
    """

    clocks: dict[str, Any]
    before: list[int]
    newest: list[int]
    current: list[int]


def clocks_for(savepoint: Savepoint, plan: PhysicalPlan, new: Mapping[str, Any], changes: Sequence[StageChange]) -> ClocksGoOn:
    """Return the clocks of a savepoint for the sources of a plan.

    The watermark waits for the first row of a source that was added, no longer for one that was removed, and never moves back.

    Parameters
    ----------
    savepoint : Savepoint
        The savepoint as it is.
    plan : PhysicalPlan
        The plan that is to run.
    new : dict
        Its outline.
    changes : sequence of StageChange
        Which stages belong together.
    """
    old, since = savepoint.note["outline"], savepoint.since
    saved = [savepoint.clocks["tracker"], *savepoint.clocks.get("others", [])]
    streams, stages = sources_paired(old, new), {c.new: c.old for c in changes if c.new is not None and c.old is not None}
    made = ClocksGoOn({}, [], [], [])
    trackers = list[dict[str, Any]]()
    for number, clock in enumerate(plan.clocks.clocks):
        was = _clock_before(old, new, number, stages, streams)
        if was is None:
            least_us = _reached(savepoint, plan, number, stages)
            facts: dict[str, Any] = {"newest": {}, "advanced": {}, "spoke": {}, "current": least_us}
            begins_us, last_us = max(least_us, min(savepoint.after)), least_us
        else:
            facts = tracker_facts(saved[was], _lags(old, was))
            if since is not None and was < len(since.current):
                facts = {**facts, "current": since.current[was]}
            begins_us, last_us = saved[was]["current"], savepoint.before[was]
        known = _sources(facts, clock, number, (old, new), streams, begins_us)
        tracker = WatermarkTracker.restored(clock.watermark, {**facts, **known}, clock.inputs)
        tracker.settle(savepoint.now_us)
        trackers.append(tracker.saved())
        made.before.append(last_us)
        made.current.append(facts["current"])
        made.newest.append(max(facts["newest"].values(), default=UNSET))
    made.clocks.update({"tracker": trackers[0], "others": trackers[1:]} if len(trackers) > 1 else {"tracker": trackers[0]})
    return made


def _clock_before(
    old: Mapping[str, Any], new: Mapping[str, Any], clock: int, stages: Mapping[int, int], streams: Mapping[int, int]
) -> int | None:
    """Return the clock of a savepoint that goes on as a clock: of the same stage, else of a stream that moves both."""
    owner, own = stages.get(new["clocks"][clock]["stage"]), old.get("clocks", ())
    by_stage = [n for n, each in enumerate(own) if each["stage"] == owner]
    if not by_stage and owner is not None:
        times = old["stages"][owner]["times"]
        by_stage = [times[0][0]] if len(times) == 1 else []
    if by_stage:
        return int(by_stage[0])
    for number, read in enumerate(new["reads"]):
        if read["clock"] == clock and number in streams and "reads" in old:
            of = old["reads"][streams[number]]["clock"]
            return 0 if of is None else int(of)
    return None


def _reached(savepoint: Savepoint, plan: PhysicalPlan, clock: int, stages: Mapping[int, int]) -> int:
    """Return what a clock shows that no stage before went by, so that the stages that follow it do not go back."""
    least = UNSET
    for number, stage in enumerate(plan.stages):
        for followed, by_us in stage.times:
            if followed == clock and number in stages:
                was_us = savepoint.stepped(stages[number])
                least = max(least, was_us if was_us in (UNSET, END_OF_TIME) else was_us + by_us)
    return least


def _lags(old: Mapping[str, Any], clock: int) -> dict[str, int]:
    clocks = old.get("clocks", ())
    return dict(clocks[clock]["lags_us"]) if clock < len(clocks) else {}


def _sources(
    facts: Mapping[str, Any],
    clock: ClockSpec,
    number: int,
    outlines: tuple[Mapping[str, Any], Mapping[str, Any]],
    streams: Mapping[int, int],
    begins_us: int,
) -> dict[str, dict[str, int]]:
    """Return what is known of each source of a clock of the plan; a new one may begin at the watermark."""
    mark, declared, newest = clock.watermark, _declared(clock), facts["newest"]
    registers = isinstance(mark, MultiSourceWatermarkSpec) and mark.unknown_spec is not None
    begin = (
        {name for name, spec in mark.sources if spec.from_savepoint} if isinstance(mark, MultiSourceWatermarkSpec) else set()
    )
    sources = {source_of_lane(name): us for name, us in newest.items()}
    of = {name: [name] for name in sources if registers and name not in declared}
    of |= {name: [name] if name in sources else _same_stream(name, sources, number, outlines, streams) for name in declared}
    begun = {name for name in declared if not of[name]}
    of = _lanes(of, newest, by_row=mark.by_row)
    known: dict[str, dict[str, int]] = {
        part: {
            name: max(facts[part][each] for each in came if each in facts[part])
            for name, came in of.items()
            if any(each in facts[part] for each in came)
        }
        for part in ("newest", "advanced", "spoke")
    }
    for name in declared:
        if name in begun and begins_us != UNSET and (mark.from_savepoint or name in begin):
            known["advanced"][name] = begins_us
    return known


def _lanes(of: Mapping[str, list[str]], newest: Iterable[str], *, by_row: bool) -> dict[str, list[str]]:
    """Return the lanes that sources are now, with those that they were; the clock of batches has one for a source."""
    lanes: dict[str, list[str]] = {}
    for name, came in of.items():
        for was in newest:
            if source_of_lane(was) in came:
                lanes.setdefault(renamed_lane(was, name) if by_row else name, []).append(was)
    return lanes


def _declared(clock: ClockSpec) -> dict[str, int]:
    """Return the lag of each source that is declared, µs."""
    return WatermarkTracker(clock.watermark).lags


def _same_stream(
    name: str,
    newest: Mapping[str, int],
    clock: int,
    outlines: tuple[Mapping[str, Any], Mapping[str, Any]],
    streams: Mapping[int, int],
) -> list[str]:
    """Return the sources of a savepoint whose rows come from the stream that a source is now: all of a stream without names."""
    old, new = outlines
    if "reads" not in old:
        return []
    for number, read in enumerate(new["reads"]):
        if read["clock"] == clock and read["source"] == name and number in streams:
            was = old["reads"][streams[number]]["source"]
            if was in newest:
                return [was]
            return [each for each in newest if each != ONLY] if name == was == ONLY else []
    return []
