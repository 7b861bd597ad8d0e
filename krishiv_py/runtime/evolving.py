"""The state of a savepoint as another plan keeps it: its tables with other columns (SEMANTICS §12.2, §12.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import distinct, key_hashes
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.aggregates import AggKernel, Rows
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.joins.sides import columns_of
from krishiv_py.kernels.state.spread import BucketContent, is_of_numbers, side_of, spread
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH
from krishiv_py.kernels.ttl import begin_ttl
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.kernels.windows.fixed.going_on import with_log, without_log
from krishiv_py.kernels.windows.session.capped import look_again
from krishiv_py.kernels.windows.session.plain import go_on_as
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.evolution import COMPLETE, Carried, fired_as, keys_of, late_rule_of, paired
from krishiv_py.planner.outline import input_text, shape_of
from krishiv_py.runtime.savepoints import Savepoint

_PART: Final = re.compile(r"p\d+_\d+")
_TTL: Final = ("touched", "ttl", "touch")


@attrs.define(kw_only=True)
class Evolved(Savepoint):
    """A savepoint as another plan reads it: the stages are those of that plan.

    Attributes
    ----------
    plans : list of (StagePlan, dict or None, int)
        Of each stage its plan, the shape its state was kept in (None: as it is kept now), and its number in the folder.
    streams_before : dict
        The number in the folder of each stream that is read, for those that are there.
    past : Savepoint or None
        The savepoint of a run of that plan over archives.
    rebuilt : frozenset of int
        The stages that have their state from there.
    """

    plans: list[tuple[StagePlan, dict[str, Any] | None, int]]
    streams_before: dict[int, int]
    past: Savepoint | None = None
    rebuilt: frozenset[int] = frozenset()

    def buckets_of(self, stage: int) -> Iterator[BucketContent]:
        """Yield the buckets of a stage, one after the other."""
        if self.past is not None and stage in self.rebuilt:
            yield from self.past.buckets_of(stage)
            return
        plan, was, number = self.plans[stage]
        for bucket in self.stages[stage].buckets:
            held = self.bucket(number, bucket)
            yield held if was is None else migrated(held, was, plan)

    def names_of(self, source: int) -> list[tuple[str, int]]:
        """Return the files that a stream has read, by its number in the plan."""
        return super().names_of(self.streams_before[source])


def carried_over(was: Mapping[str, Any], stage: StagePlan, reached_us: int) -> Carried:
    """Return what a stage carries along when it takes state that was kept as `was` says.

    Parameters
    ----------
    was : dict
        The shape of the stage before.
    stage : StagePlan
        The stage, which carries nothing yet.
    reached_us : int
        The watermark under which its state last stepped.
    """
    now = shape_of(stage)
    pairs = paired(was["aggregates"], now["aggregates"])
    names = {was["aggregates"][index]["name"]: now["aggregates"][number]["name"] for number, index in pairs.items()}
    wholes = [[whole, [names[name] for name in of if name in names]] for whole, of in was["wholes"]]
    wholes = [[whole, of] for whole, of in wholes if of]
    added = [agg["name"] for number, agg in enumerate(now["aggregates"]) if number not in pairs and agg["name"] != COMPLETE]
    if added:
        number = 1 + max((int(whole.rpartition("_")[2]) for whole, _ in was["wholes"]), default=0)
        wholes.append([f"__whole_{number}", added])
    left_us = was["left_us"]
    if was["lateness_us"] != now["lateness_us"]:
        left_us = max(left_us, floor_watermark(reached_us, was["lateness_us"]))
    return Carried(wholes, was["blind_us"], UNSET if left_us in (UNSET, END_OF_TIME) else left_us)


def migrated(held: BucketContent, was: Mapping[str, Any], stage: StagePlan) -> BucketContent:
    """Return a bucket as another plan keeps it."""
    meta, tables = dict(held.meta), dict(held.tables)
    now = shape_of(stage)
    if was["ttl"] is not None and now["ttl"] is None and held.meta.get("runs:grave"):
        raise CheckpointError(
            "the time to live cannot be removed yet",
            got=f"windows of {stage.spec.name} that lost rows to it are in state",
            then="they would look whole",
            hint="make the savepoint once these windows are over, or keep the time to live",
        )
    if was["ttl"] not in (None, now["ttl"]):
        meta = {name: value for name, value in meta.items() if name.partition(":")[2] not in _TTL and name != "ttl_checked"}
        tables = {name: t for name, t in tables.items() if name.partition("/")[0] not in _TTL}
    fired_us = meta.get("fired_at", UNSET)
    if "fired_at" in meta and (was["lateness_us"], was["emit"]) != (now["lateness_us"], now["emit"]):
        meta["fired_at"] = fired_as(fired_us, was, now)
    table = _Tables(was, stage)
    tables = {name: table.of(rows, side_of(name)) for name, rows in tables.items()}
    if keys_of(was) != keys_of(now):
        moved = BucketContent(meta, _rehashed(tables, stage.layout))
        (content,) = spread([moved], len(stage.spec.keys), 1)  # logs are in order of the hashes
        meta, tables = content.meta, dict(content.tables)
    bucket = BucketContent(meta, tables).bucket()
    if now["ttl"] is not None and now["ttl"] != was["ttl"]:
        begin_ttl(stage.spec, bucket, _keys_in(tables, stage.layout))
    _go_on(stage, bucket, was, now, fired_us)
    return BucketContent.of(bucket)


def _go_on(stage: StagePlan, bucket: Bucket, was: Mapping[str, Any], now: Mapping[str, Any], fired_us: int) -> None:
    """Let a bucket go on under another emission, late rule, lateness or trigger; its windows had fired up to `fired_us`."""
    spec, route = stage.spec, stage.spec.operation.route
    logged, logs = ("firings" in shape["fixed"] for shape in (was, now))
    of_other_rules = (was["emit"], late_rule_of(was)) != (now["emit"], late_rule_of(now))
    of_other_lateness = was["lateness_us"] != now["lateness_us"]
    if logged != logs:
        over_us = max(floor_watermark(fired_us, was["lateness_us"]), was["left_us"])
        if logs:
            with_log(spec, bucket, over_us, over_us if was["emit"] == "final" else fired_us)
        else:
            without_log(spec, bucket, fired_us)
    elif route == "session" and not logs and (of_other_rules or of_other_lateness) and "fired_at" in bucket.meta:
        go_on_as(spec, bucket)
    elif route == "capped session" and not logs and (of_other_rules or of_other_lateness):
        look_again(spec, bucket, was["lateness_us"] if was["emit"] == "final" else 0)


def _rehashed(tables: Mapping[str, pa.Table], layout: Layout) -> dict[str, pa.Table]:
    """Give keys their new types, and write the hashes of these in all tables."""
    rewritten, old, new = dict(tables), [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name, table in tables.items():
        for key in layout.key_fields:
            if key.name in table.column_names:
                column = table.column_names.index(key.name)
                table = table.set_column(column, key, _cast(table[key.name], key.type))
        if HASH in table.column_names and all(name in table.column_names for name in layout.key_names):
            hashes = key_hashes([table[key] for key in layout.key_names], table.num_rows)
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
        self.was, self.now = was, shape_of(stage)
        self.layout = stage.layout
        self.pairs = paired(was["aggregates"], self.now["aggregates"])
        self.incomplete = any(
            n not in self.pairs and agg["name"] != COMPLETE and not agg["name"].startswith("__whole_")
            for n, agg in enumerate(self.now["aggregates"])
        )
        self.inputs = [input_text(value, where) for value, where in self.layout.inputs]
        self.flags = self._flags()

    def _flags(self) -> dict[int, bool]:
        """Return inputs of hidden aggregates that rows from before have, by number."""
        flags = {}
        for number, index in enumerate(self.layout.input_of):
            agg = self.now["aggregates"][number]
            if index is not None and self._is_flag(agg["name"]) and (number not in self.pairs or agg["name"] == COMPLETE):
                flags[index] = self._whole(number, agg["name"])
        return flags

    def _is_flag(self, name: str) -> bool:
        return name == COMPLETE or name.startswith("__whole_")

    def _whole(self, number: int, name: str) -> bool:
        """Return whether rows from before are whole for a hidden aggregate, or for what says that all is."""
        return not self.incomplete if name == COMPLETE else False

    def of(self, rows: pa.Table, side: str | None = None) -> pa.Table:
        """Return a table with the columns of the new plan; of a join it is one of a `side`."""
        names = rows.column_names
        blocks: dict[int, list[tuple[pa.Field, Any]]] = {}
        gone: set[str] = set()
        parts = [name for name in names if _PART.fullmatch(name)]
        if parts:
            gone.update(parts)
            blocks[names.index(parts[0])] = self._parts(rows)
        elif TIME in names and set(self.was["row"]) - set(_riders(self.was)) <= set(names):
            old = [f"a{n}" for n in range(len(self.was["inputs"]))]
            gone.update(old)
            after = [i for i, name in enumerate(names) if re.fullmatch(r"k\d+", name)] or [names.index(TIME)]
            blocks[names.index(old[0]) if old else after[-1] + 1] = self._inputs(rows)
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

    def _parts(self, rows: pa.Table) -> list[tuple[pa.Field, Any]]:
        fields = {field.name: field for field in self.layout.partial_fields}
        columns = []
        for number, (names, kernel) in enumerate(zip(self.layout.partial_names, self.layout.kernels, strict=True)):
            index, name = self.pairs.get(number), self.now["aggregates"][number]["name"]
            if index is not None:
                old = [rows[f"p{index}_{n}"].combine_chunks() for n in range(len(self.was["aggregates"][index]["parts"]))]
                new = _widened(old, kernel)
                if name == COMPLETE and self.incomplete:
                    new = [_all(False, rows.num_rows)]
            elif self._is_flag(name):
                new = [_all(self._whole(number, name), rows.num_rows)]
            else:
                new = _empty(kernel, self._input_type(number), rows.num_rows)
            columns += [(fields[n], column) for n, column in zip(names, new, strict=True)]
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
    return [name for name in was["row"] if name in ("__d", "__g", "__ws", "__we") or re.fullmatch(r"[lr]\d+", name)]


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
        raise CheckpointError(
            "a value of the state does not fit its new type",
            got=f"{column.type} becomes {type_}",
            then="it would be lost",
            hint="use a type with more digits",
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
        got=f"{', '.join(str(p.type) for p in parts)} for {', '.join(map(str, types))}",
        then="its value so far would be lost",
        hint="widen types only (int, bigint, decimal; float, double), or give the aggregate over the new type another name",
    )
