"""Columns in an operator: working rows, partials, late rows and results, and the key and window of a row, for messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import WHOLE_BYTES, by_groups, joined, key_hashes, too_much
from krishiv_py.arrays.types import Ints, Mask, with_column
from krishiv_py.arrays.types import whole as whole
from krishiv_py.kernels.aggregates import AggKernel, Rows, kernel_for
from krishiv_py.kernels.aggregates.base import FailingPlace, blame_too_long, first_of, regrouped, shown_key
from krishiv_py.kernels.columns.evaluate import expr_type
from krishiv_py.kernels.columns.steps import step_schema
from krishiv_py.kernels.columns.times import FixedAssigner, lengths_between, time_type, unstamp
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.aggregates.selections import WholeSince
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.expressions.expr import Col, Expr, identity_of
from krishiv_py.plan.operation import ResultTime
from krishiv_py.plan.schema import order_name, time_name

WINDOW: Final = "w"
"""The column of window starts, in tables that have one."""
TIME: Final = "__t"
SIGN: Final = "__sign"
"""1 for a row that is added, and -1 for one that is taken back, where rows change."""
START: Final = "\x00start"
"""A key column of the library's own, the last: where a window that is known by its end begins."""
Bounds = tuple[Ints, Ints]
"""Starts and ends of windows, in µs."""


def key_names(spec: OperatorSpec) -> list[str]:
    """Return what key columns are called in an operator's tables."""
    return [f"k{i}" for i in range(len(spec.keys))]


def place_of(spec: OperatorSpec, table: pa.Table, row: int, bounds: tuple[int, int] | None = None) -> str:
    """``for key user='a' in the window 0 to 10``, as far as it is known: of a row, with the `bounds` of its window."""
    names = [n for n in key_names(spec) if n in table.column_names]
    known = len(names) == len(spec.keys)
    shown = [n for n, key in zip(names, spec.keys, strict=False) if key != START]
    key = shown_key(spec.keys[: len(shown)], [table[n][row].as_py() for n in shown]) if known else ""
    window_bounds = bounds or _window(spec, table, row)
    if window_bounds is not None and known and len(shown) < len(names):
        window_bounds = int(table[names[-1]][row].as_py()), window_bounds[1]
    return " ".join([*(["for", key] if key else []), *([] if window_bounds is None else [_shown_window(spec, *window_bounds)])])


def _window(spec: OperatorSpec, table: pa.Table, row: int) -> tuple[int, int] | None:
    """Return the window of a row, if the row is in one only."""
    grid = spec.operation.extent.grid
    if grid is None:
        return None
    if WINDOW in table.column_names:
        start = int(table[WINDOW][row].as_py())
    elif grid.tiles and TIME in table.column_names:
        start = int(FixedAssigner(grid).last_start(table[TIME].to_numpy()[row : row + 1])[0])
    else:
        return None
    return start, start + grid.size_us


def _shown_window(spec: OperatorSpec, start: int, end: int) -> str:
    if spec.operation.extent.numbered:
        return f"in rows {start} to {end}"
    bounds = unstamp(np.array([start, end], np.int64), spec.time_kind).to_pylist()
    return "in the window {} to {}".format(*(b.isoformat() if hasattr(b, "isoformat") else b for b in bounds))


GAP = "__g"
DOUBT = "__d"
MARK: Final = "__w"
"""The watermark by which a row is classified, with the row clock, of operators that go on with it."""
WINDOW_START, WINDOW_END = "__ws", "__we"
LATE_REASONS = ("null_time", "time_out_of_range", "null_key", "late", "future", "unknown_source")


def late_names(columns: Sequence[str]) -> list[str]:
    """Return what the three columns after those of a late row are called: ``late_`` is put in front until a name is free."""
    taken = {c.lower() for c in columns}  # Spark ignores case
    names = []
    for name in ("reason", "watermark", "lateness"):
        while name in taken:
            name = f"late_{name}"
        names.append(name)
    return names


class Layout:
    """Names and types of the columns an operator works with, derived once from its specification."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.inputs: list[tuple[Expr | None, Expr | None]] = []
        self.kernels: list[AggKernel] = []
        self.input_of: list[int | None] = []
        input_types: list[pa.DataType] = []
        seen: dict[tuple[object, ...], int] = {}
        for call in spec.aggs:
            value = None if call._counts_rows else call.arg
            type_ = pa.bool_() if value is None else expr_type(value, spec.row_schema)
            self.kernels.append(kernel_for(call, type_))
            if value is None and call.where is None:
                self.input_of.append(None)
                continue
            same = tuple(None if part is None else identity_of(part) for part in (value, call.where))
            if same not in seen:
                seen[same] = len(self.inputs)
                self.inputs.append((value, call.where))
                input_types.append(type_)
            self.input_of.append(seen[same])
        taking_back = [kernel.taking_back() for kernel in self.kernels] if spec.changes else []
        self.takes_back = None not in taking_back
        """True if partials alone take back rows that are withdrawn; else rows have to be kept."""
        self.kernels = (
            [kernel for kernel in taking_back if kernel is not None] if taking_back and self.takes_back else self.kernels
        )
        self.alike = _alike(self.kernels, self.input_of, input_types)
        """Numbers of aggregates that are computed in one call."""
        self.alone = [[number] for number in range(len(self.kernels)) if not any(number in part for part in self.alike)]
        self.key_names = key_names(spec)
        self.key_types = [spec.row_schema.field(k).type for k in spec.keys]
        keys = [pa.field(n, t) for n, t in zip(self.key_names, self.key_types, strict=True)]
        self.key_fields = keys
        inputs = [pa.field(f"a{i}", t) for i, t in enumerate(input_types)]
        self.gap_column = spec.operation.extent.gap_column
        gap = [] if self.gap_column is None else [pa.field(GAP, pa.int64())]
        refuses = spec.operation.late_by == "state" and spec.options.state_refuses
        self.carried = list(spec.late_columns) if refuses else []
        """Columns that ride along as ``l0``, ``l1``, … because only the state can tell which rows are late."""
        self.carried_fields = [pa.field(f"l{i}", spec.row_schema.field(n).type) for i, n in enumerate(self.carried)]
        self.own = list(spec.operation.carried(spec.row_schema))
        """Columns of a row that ride along as ``r0``, ``r1``, … to come out with its result."""
        self.own_fields = [spec.row_schema.field(n) for n in self.own]
        self.own_names = [f"r{i}" for i in range(len(self.own))]
        self.in_order = any(kernel.in_order for kernel in self.kernels)
        self.doubts = refuses and not self.in_order and merges_only(spec)
        """True if rows say by themselves that they may be refused: the others can be combined before the state is asked."""
        doubt = [pa.field(DOUBT, pa.bool_())] if self.doubts else []
        self.assigned = (
            [pa.field(n, pa.int64()) for n in (WINDOW_START, WINDOW_END)] if spec.operation.extent.assigner is not None else []
        )
        """Bounds of windows, which a row brings with it where only a user's assigner knows them."""
        own = [pa.field(n, f.type) for n, f in zip(self.own_names, self.own_fields, strict=True)]
        apart = [pa.field(f"y{i}", spec.row_schema.field(n).type) for i, n in enumerate(spec.row_ids)]
        sign = [pa.field(SIGN, pa.int8())] if spec.changes else []
        self.marked = spec.watermark.by_row and spec.operation.reads_marks
        mark = [pa.field(MARK, pa.int64())] if self.marked else []
        self.row_schema = pa.schema(
            [
                pa.field(TIME, pa.int64()),
                *sign,
                *gap,
                *doubt,
                *mark,
                *self.assigned,
                *keys,
                *inputs,
                *self.carried_fields,
                *own,
                *apart,
            ]
        )
        ends = np.cumsum([0, *(len(kernel.partial_types) for kernel in self.kernels)]).tolist()
        self.width = ends[-1]
        self.places = [slice(*ends[number : number + 2]) for number in range(len(self.kernels))]
        """The places of the partials of each aggregate among all."""
        self.partial_names = [[f"p{i}_{j}" for j in range(len(k.partial_types))] for i, k in enumerate(self.kernels)]
        self.reasons = pa.array(LATE_REASONS)

    @cached_property
    def working(self) -> dict[str, str]:
        """Return what the columns that a row keeps, keys and its own, are called in tables of the operator."""
        pairs = zip(self.spec.keys, self.key_names, strict=True), zip(self.own, self.own_names, strict=True)
        return {name: inside for names in pairs for name, inside in names}

    @cached_property
    def row_bytes(self) -> int | None:
        """Bytes that a working row takes at the most; None where texts or lists have no such limit."""
        widths = [_width(type_) for type_ in self.row_schema.types]
        return None if None in widths else sum(width for width in widths if width is not None)

    @cached_property
    def partial_fields(self) -> list[pa.Field]:
        """Fields of the partial columns, aggregate by aggregate."""
        return [
            pa.field(name, type_)
            for names, kernel in zip(self.partial_names, self.kernels, strict=True)
            for name, type_ in zip(names, kernel.partial_types, strict=True)
        ]

    @cached_property
    def late_schema(self) -> pa.Schema:
        """Schema of late rows: the row, then ``reason``, ``watermark`` and ``lateness`` (unit of the time column)."""
        extra = [pa.string(), time_type(self.spec.time_kind), pa.int64()]
        fields = [self.spec.row_schema.field(n) for n in self.spec.late_columns]
        return pa.schema(fields + [pa.field(n, t) for n, t in zip(late_names(self.spec.late_columns), extra, strict=True)])

    def refusal_notes(
        self, reasons: pa.Array, watermark_us: int | Ints, times: Ints | None = None, before_watermark: Mask | None = None
    ) -> list[pa.Array]:
        """Return the last three columns of refused rows.

        Parameters
        ----------
        reasons : pyarrow.Array
            Why each was refused.
        watermark_us : int or ndarray of int64
            The watermark in force, or that of each row.
        times : numpy.ndarray, optional
            Their event times, where there are any.
        before_watermark : numpy.ndarray, optional
            Which of them were behind the watermark; all, if left out.
        """
        kind, n = self.spec.time_kind, len(reasons)
        marks = np.full(n, watermark_us)
        shown = unstamp(marks, kind)
        unknown = (marks == UNSET) | (marks == END_OF_TIME)  # after the end of input no row is late by so and so much
        if times is None or unknown.all():
            return [reasons, shown, pa.nulls(n, pa.int64())]
        mask = unknown if before_watermark is None else unknown | ~before_watermark
        mask = mask if mask.any() else None
        return [reasons, shown, pa.array(lengths_between(times, marks, kind), pa.int64(), mask=mask)]

    def aside(self, rows: pa.Table, reason: str, watermark_us: int) -> pa.Table:
        """Return rows that something failed for as late rows; columns that they do not have are null."""
        schema, n = self.late_schema, rows.num_rows
        columns = [
            rows.column(name)
            if rows.schema.get_field_index(name) >= 0 and rows.schema.field(name).type == type_
            else pa.nulls(n, type_)
            for name, type_ in zip(self.spec.late_columns, schema.types, strict=False)
        ]
        return pa.Table.from_arrays(
            [*columns, *self.refusal_notes(pa.repeat(pa.scalar(reason), n), watermark_us)], schema=schema
        )

    def refused(self, rows: pa.Table, reason: str, watermark_us: int) -> pa.Table:
        """Return working rows, with their keys and own columns, as late rows."""
        named = dict(zip(self.own_names, self.own, strict=True)) | dict(zip(self.key_names, self.spec.keys, strict=True))
        known = [name for name in named if name in rows.column_names]
        columns = {named[name]: rows[name] for name in known}
        return self.aside(pa.table(columns), reason, watermark_us)

    @cached_property
    def result_schema(self) -> pa.Schema:
        """Schema of results: keys, bounds and aggregates, or what the plan makes of them; then ``op``; after all steps."""
        spec = self.spec
        bound = pa.int64() if spec.operation.extent.numbered else time_type(spec.time_kind)
        fields = [pa.field(k, t) for k, t in zip(spec.keys, self.key_types, strict=True)]
        own = spec.operation.result_fields(spec.row_schema, bound)
        if own is None:
            windows = ("window_start", "window_end") if spec.operation.nature.opens_windows else ()
            fields += [pa.field(name, bound) for name in windows]
            fields += [pa.field(c.output_name, k.result_type) for c, k in zip(spec.aggs, self.kernels, strict=True)]
            fields += self.own_fields
        else:
            fields = own
        handed_on = handed_fields(spec, pa.schema(fields)) if spec.followed else []
        if spec.output is not None:
            given = pa.schema(fields)
            fields = [_field_of(name, expr, given) for name, expr in spec.output]
        if spec.options.emit_mode == "retractions":
            fields.append(pa.field("op", pa.string()))
        if spec.options.pane:
            fields += [pa.field("pane_timing", pa.string()), pa.field("pane_index", pa.int64())]
        schema = pa.schema([*fields, *handed_on])
        for step in spec.after:
            schema = step_schema(step, schema)
        return schema

    def create(self, rows: pa.Table, ids: Ints, n: int) -> list[pa.Array]:
        """Partial columns of working rows."""
        each = self.row_bytes
        if (each is None or each * rows.num_rows > WHOLE_BYTES) and too_much(rows):
            return joined([self._computed(*part, of_rows=True) for part in by_groups(rows, ids, n)])
        return self._computed(rows, ids, n, of_rows=True)

    def merge(self, partials: pa.Table, ids: Ints, n: int) -> list[pa.Array]:
        """Merged partial columns."""
        if too_much(partials):
            return joined([self._computed(*part, of_rows=False) for part in by_groups(partials, ids, n)])
        return self._computed(partials, ids, n, of_rows=False)

    def _computed(self, table: pa.Table, ids: Ints, n: int, *, of_rows: bool) -> list[pa.Array]:
        """Return the partial columns of working rows, or of partials."""
        out: list[pa.Array] = [None] * self.width
        times = table[TIME].to_numpy() if of_rows else None
        with self._failing_place(table, first_of(ids)):
            for part in self._parts(table.num_rows) if self.alike else self.alone:
                number = part[0]
                kernel, names = self.kernels[number], self.partial_names[number]
                try:
                    if part[-1] != number:
                        for each, made in zip(part, self._of_columns(part, table, ids, n, of_rows=of_rows), strict=True):
                            out[self.places[each]] = made
                    elif times is None:
                        out[self.places[number]] = kernel.merge([whole(table[name]) for name in names], ids, n)
                    else:
                        column = self.input_of[number]
                        values = None if column is None else whole(table[f"a{column}"])
                        out[self.places[number]] = kernel.create(Rows(values, times, ids, n))
                except pa.ArrowInvalid as problem:
                    blame_too_long(self.spec.aggs[number].output_name, problem)
                    raise
        return out

    def _parts(self, rows: int) -> list[list[int]]:
        """Return the numbers of aggregates that are computed in one call, for so many rows; of most each alone."""
        most = max(1, _JOINED_VALUES // max(1, rows))
        return [part[low : low + most] for part in (*self.alike, *self.alone) for low in range(0, len(part), most)]

    def _of_columns(self, part: list[int], table: pa.Table, ids: Ints, n: int, *, of_rows: bool) -> list[list[pa.Array]]:
        """Return the partials of equal aggregates: one call with their columns as one, of as many times the groups."""
        kernel = self.kernels[part[0]]
        names = [[f"a{self.input_of[number]}"] if of_rows else self.partial_names[number] for number in part]
        columns = [pa.concat_arrays([whole(table[name]) for name in same]) for same in zip(*names, strict=True)]
        apart = (np.arange(len(part))[:, np.newaxis] * n + ids).ravel()
        with regrouped(lambda group: group % n):
            made = (
                kernel.create(Rows(columns[0], _NO_TIMES, apart, len(part) * n))
                if of_rows
                else kernel.merge(columns, apart, len(part) * n)
            )
        return [[column.slice(place * n, n) for column in made] for place in range(len(part))]

    def finish(self, partials: pa.Table, bounds: Bounds | None = None) -> list[pa.Array]:
        """Finished aggregate columns; `bounds` of windows, where they are known, are named for one that fails."""
        if too_much(partials) and partials.num_rows > 1:
            half = partials.num_rows // 2
            first = None if bounds is None else (bounds[0][:half], bounds[1][:half])
            second = None if bounds is None else (bounds[0][half:], bounds[1][half:])
            return joined([self.finish(partials.slice(0, half), first), self.finish(partials.slice(half), second)])
        with self._failing_place(partials, int, bounds):
            given = partials.column_names
            return [
                whole(partials[result])
                if (result := finished_name(i)) in given
                else kernel.finish([whole(partials[x]) for x in names])
                for i, (kernel, names) in enumerate(zip(self.kernels, self.partial_names, strict=True))
            ]

    def _failing_place(self, table: pa.Table, row_of: Callable[[int], int], bounds: Bounds | None = None) -> FailingPlace:
        """Let the error for a group that fails name key and window, if the table has them; else whoever has them may."""

        def known() -> bool:
            return bounds is not None or bool(self.key_names and set(self.key_names) <= set(table.column_names))

        def where(group: int) -> str:
            row = row_of(group)
            return place_of(self.spec, table, row, None if bounds is None else (int(bounds[0][row]), int(bounds[1][row])))

        return FailingPlace(where, known)


_JOINED_VALUES: Final = 1 << 18
"""So many values of all columns are computed at once: beyond, a call costs next to nothing, and a copy does."""
_NO_TIMES: Final[Ints] = np.zeros(0, np.int64)


def _alike(kernels: Sequence[AggKernel], input_of: Sequence[int | None], types: Sequence[pa.DataType]) -> list[list[int]]:
    """Return the numbers of aggregates that are equal but for their column."""
    found: dict[tuple[AggKernel, pa.DataType], list[int]] = {}
    for number, (kernel, column) in enumerate(zip(kernels, input_of, strict=True)):
        if kernel.joins_columns and column is not None:
            found.setdefault((kernel, types[column]), []).append(number)
    return [numbers for numbers in found.values() if len(numbers) > 1]


def _field_of(name: str, expr: Expr, given: pa.Schema) -> pa.Field:
    return given.field(expr.name).with_name(name) if isinstance(expr, Col) else pa.field(name, expr_type(expr, given))


def _width(type_: pa.DataType) -> int | None:
    """Bytes that a value takes, its place in the null mask included; None where values have no common size."""
    known = pa.types.is_primitive(type_) or pa.types.is_decimal(type_)
    return 1 + (type_.bit_width + 7) // 8 if known else None


def finished_name(aggregate: int) -> str:
    """Return the column that holds results of an aggregate next to partials, where they are known already."""
    return f"__f{aggregate}"


def merges_only(spec: OperatorSpec) -> bool:
    """Return whether windows are sessions whose rows need not be distinguished once they overlap."""
    return spec.operation.sums and spec.operation.fires_plainly(spec.options)


_START = "window_start"


def handed_fields(spec: OperatorSpec, results: pa.Schema) -> list[pa.Field]:
    """Return the fields of these columns, for `results` that no output was computed of."""
    if _untimed(spec):
        return [pa.field(order_name(number), pa.int64()) for number in range(1 + _in_pairs(spec))]
    order = [pa.field(order_name(i), type_) for i, type_ in enumerate(_order_types(spec, results))]
    time = _time(spec)
    taken = [*results.names, *(name for name, _ in spec.output or ())]
    return order if time.of_row else [pa.field(time_name(taken), results.field(time.column).type), *order]


def handed_columns(spec: OperatorSpec, results: pa.Table) -> list[pa.ChunkedArray]:
    """Return these columns of `results`."""
    if _untimed(spec):  # what of a key comes first counts, and all results of a key are of one step of one bucket
        n = results.num_rows
        mark = np.full(n, key_hashes([results[key].slice(0, 1) for key in spec.keys], min(n, 1)).sum())
        return [*([pa.chunked_array([mark])] if _in_pairs(spec) else []), pa.chunked_array([pa.array(np.arange(n))])]
    time = _time(spec)
    column = results[time.column]
    raw = column.cast(pa.int64())
    starts = [results[_START].cast(pa.int64())] if _START in results.schema.names else []
    order = [raw, *starts, *(results[k] for k in _keys(spec, results.schema))]
    if time.of_row:
        return order
    before = time.before_us(spec.tick_us) // spec.tick_us  # bounds count in units of the time column
    return [pc.subtract(raw, pa.scalar(before, pa.int64())).cast(column.type) if before else column, *order]


def _in_pairs(spec: OperatorSpec) -> bool:
    """Return whether the two halves of an update have to stay next to each other among the results of other buckets."""
    return spec.operation.change_time(spec.time_column) is not None


def _untimed(spec: OperatorSpec) -> bool:
    """Return whether results have no event time, and no windows of which they would have one."""
    return spec.operation.result_time(spec.time_column) is None and not spec.operation.nature.opens_windows


def _time(spec: OperatorSpec) -> ResultTime:
    return spec.operation.result_time(spec.time_column) or ResultTime("end")  # numbers of rows, which nothing can follow


def _keys(spec: OperatorSpec, results: pa.Schema) -> list[str]:
    return [k for k in spec.keys if k in results.names]


def _order_types(spec: OperatorSpec, results: pa.Schema) -> list[pa.DataType]:
    starts = [pa.int64()] if _START in results.names else []
    return [pa.int64(), *starts, *(results.field(k).type for k in _keys(spec, results))]


def rows_counted(layout: Layout) -> str | None:
    """Return the partial that says how many rows a window holds; None where no aggregate has counted all of them."""
    partial = {name for _, names in layout.spec.wholes for name in names}
    for call, names in zip(layout.spec.aggs, layout.partial_names, strict=True):
        if call._counts_rows and call.where is None and call.output_name not in partial:
            return names[0]
    return None


def of_no_rows(layout: Layout) -> pa.Table:
    """Return the partials of a window without rows, as one row."""
    created = layout.create(layout.row_schema.empty_table(), np.empty(0, np.int64), 1)
    return pa.Table.from_arrays(created, schema=pa.schema(layout.partial_fields))


def noted_whole(layout: Layout, partials: pa.Table, known: Mask, mark: str) -> pa.Table:
    """Return partials that note which of them state knows, in the hidden `mark`.

    Parameters
    ----------
    layout : Layout
        Names them.
    partials : pyarrow.Table
        Partials with all columns.
    known : ndarray of bool
        Which rows hold what they are to hold.
    mark : str
        The name of the aggregate that is false for the others, whose aggregates results show as null.
    """
    for call, (name, *_) in zip(layout.spec.aggs, layout.partial_names, strict=True):
        if isinstance(call, WholeSince) and call.output_name == mark:
            partials = with_column(partials, name, pa.array(known))
    return partials
