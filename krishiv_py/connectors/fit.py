"""Arrow data of any layout, also of parquet files, as columns of a stream's types, here only (docs/types.md has the table).

The one place where Arrow data of any layout becomes columns of a stream's types (docs/types.md has the table).

A reader says by a :class:`Rule` what it makes of columns that are missing, of extra columns, of names in another case and of
other types. Fields of structs are columns: the rule holds for them too, at any depth, in lists, maps and structs.

    fitted_batch(batch, schema, SENT, "the batch was not sent")    a batch; fit_batch for callers with errors of their own
    fitted(column, field, SENT, "the batch was not sent")          a column; fit_column
    fit(values, type_, SENT, ("u",))                                values of any depth
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from krishiv_py.errors import SchemaError, shown
from krishiv_py.types import is_numeric, normal_type, type_text

Path: TypeAlias = tuple[str, ...]
"""The name of a column, and those of the fields inside it."""
Leaf: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]
"""Makes values of a plain type out of those of another one; raises MisfitError or an error of Arrow's where it may not."""


class MisfitError(ValueError):
    """Data that does not fit a type; it is raised again as the error of the reader.

    Parameters
    ----------
    what : str
        The kind of the difference, with the path of the column or field.
    got : str
        The names or types that are there instead; no values.
    hint : str
        What to do.
    where : str
        The column or field.
    types : tuple of pyarrow.DataType, optional
        The type that is there, and the one that is wanted, where that is the difference.

    Attributes
    ----------
    lacks : bool
        Whether a column or field is missing.
    """

    def __init__(
        self, what: str, got: str, hint: str, where: str = "", types: tuple[pa.DataType, pa.DataType] | None = None
    ) -> None:
        super().__init__(what, got, hint, where, types)
        self.lacks = False
        self.what, self.got, self.hint, self.where, self.types = what, got, hint, where, types

    def __str__(self) -> str:
        return f"{self.what}; {self.got}" if self.got else self.what

    def error(self, consequence: str) -> SchemaError:
        """Return the misfit as an error of the schema."""
        return SchemaError(self.what, got=self.got, then=consequence, hint=self.hint)


def same_kind(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Another width, time unit or layout, where no value is lost; never another kind of value."""
    is_, given = pa.types, normal_type(values.type)
    if is_.is_integer(given):
        fits = is_.is_integer(wanted) or is_.is_decimal(wanted)
    elif is_.is_decimal(given):
        fits = is_.is_decimal(wanted)
    else:
        fits = given == wanted or (is_.is_float32(given) and is_.is_float64(wanted))
    if not fits:
        raise WrongTypeError(values.type, wanted)
    if is_.is_integer(values.type) and is_.is_decimal(wanted):  # Arrow asks for room for any number
        values = values.cast(pa.decimal128(38, min(wanted.scale, 18)))
    return values.cast(wanted)


def exact_number(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """As :func:`same_kind`, and a number as any other number that holds it, a date as a time."""
    is_, given = pa.types, normal_type(values.type)
    if not (is_numeric(given) and is_numeric(wanted)) and not (is_.is_date(given) and is_.is_timestamp(wanted)):
        return same_kind(values, wanted)
    if is_.is_integer(values.type) and is_.is_decimal(wanted):
        return same_kind(values, wanted)
    if is_.is_float16(values.type):
        values = values.cast(pa.float32())
    exact = values.cast(wanted)
    if _infinite(exact) != _infinite(values):
        raise pa.ArrowInvalid(f"a number is too large for {type_text(wanted)}")
    if is_.is_decimal(wanted) and is_.is_floating(values.type) and not exact.cast(values.type).equals(values):
        raise pa.ArrowInvalid(f"a number has more digits than {type_text(wanted)}")
    return exact


def exact_value(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """As :func:`exact_number`, but a double is rounded to no float either."""
    exact = exact_number(values, wanted)
    if pa.types.is_float64(values.type) and pa.types.is_float32(wanted):
        rounded = pc.and_(pc.not_equal(exact.cast(pa.float64()), values), pc.invert(pc.is_nan(values)))
        if pc.any(rounded).as_py():
            raise pa.ArrowInvalid(f"a number has more digits than {type_text(wanted)}")
    return exact


def cut_to_microseconds(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """As :func:`same_kind`, and times in nanoseconds lose what is finer than a microsecond, towards the past."""
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns" and pa.types.is_timestamp(wanted):
        values = pc.floor_temporal(values, unit="microsecond")
    if pa.types.is_duration(values.type) and values.type.unit == "ns" and pa.types.is_duration(wanted):
        count = pc.fill_null(values.cast(pa.int64()), 0).to_numpy() // 1_000
        values = pa.array(count, mask=values.is_null().to_numpy(zero_copy_only=False)).cast(pa.duration("us"))
    return same_kind(values, wanted)


@attrs.frozen
class Rule:
    """The rule of a reader for differences between what comes in and a schema, for columns and for fields alike.

    Attributes
    ----------
    missing : {"fail", "null"}
        A name of the schema that is not there.
    extra : {"fail", "skip"}
        A name that the schema does not have.
    any_case : bool
        Whether a name that differs in case only is the same one, where none is written as in the schema.
    leaf : callable
        Which types become which other ones.
    copied : bool
        Whether batches and tables are copied, as what comes in may be memory that its owner writes to afterwards.
    """

    missing: Literal["fail", "null"] = "fail"
    extra: Literal["fail", "skip"] = "fail"
    any_case: bool = False
    leaf: Leaf = same_kind
    copied: bool = False


SENT: Final = Rule(copied=True)
"""Frames that are sent."""
RETURNED: Final = Rule(leaf=exact_number, copied=True)
"""Results of functions of users, under a schema that they declared."""
COMPUTED: Final = Rule(leaf=exact_number)
"""Results of functions of the library's own in the place of those of users."""
SOURCE: Final = Rule(extra="skip", copied=True)
"""Batches of a source of the user's."""
READ: Final = Rule(extra="skip")
"""Batches of a source of the library's own, which reads into new memory each time."""
FILE: Final = Rule(extra="skip", any_case=True)
"""Files; a reader that takes what is missing as null says so."""
TABLE: Final = Rule(missing="null", extra="skip", any_case=True, leaf=exact_value)
"""Files of a table whose log says the types: older files may lack columns, and have narrower ones."""
LOOKUP: Final = Rule(extra="skip", leaf=exact_value, copied=True)
"""Tables that rows are looked up in."""


def spelt(name: str, names: Sequence[str]) -> str | None:
    """Return how `names` spell a name of the schema: as it is there, else the only one that differs in case alone.

    Raises
    ------
    MisfitError
        When it appears twice.
    """
    (place,) = places((name,), names, any_case=True)
    return None if place is None else names[place]


def places(wanted: Sequence[str], given: Sequence[str], *, any_case: bool, path: Path = ()) -> list[int | None]:
    """Return the place of each wanted name among those given: as written, else with `any_case` the only one of another case.

    Raises
    ------
    MisfitError
        When a wanted name appears twice.
    """
    if list(wanted) == list(given):
        return list(range(len(given)))
    by_name: dict[str, list[int]] = {}
    by_small: dict[str, list[int]] = {}
    for i, name in enumerate(given):
        by_name.setdefault(name, []).append(i)
        if any_case:
            by_small.setdefault(name.lower(), []).append(i)
    indices: list[int | None] = []
    for name in wanted:
        same = by_name.get(name) or by_small.get(name.lower(), [])
        if len(same) > 1:
            names = [given[i] for i in same]
            where = _where((*path, name))
            what = f"{where} appears twice" if name in by_name else f"no {where}, but {' and '.join(map(repr, names))}"
            raise MisfitError(what, "neither can be meant alone", "rename one of them")
        indices.append(same[0] if same else None)
    return indices


def fitted_batch(batch: pa.RecordBatch, schema: pa.Schema, rule: Rule, consequence: str) -> pa.RecordBatch:
    """Return a batch in the columns of a schema.

    Raises
    ------
    SchemaError
        As :func:`fitted`, and for other columns where the rule does not take them.
    """
    try:
        return fit_batch(batch, schema, rule)
    except MisfitError as problem:
        raise problem.error(consequence) from None


def fitted(column: pa.Array, field: pa.Field, rule: Rule, consequence: str) -> pa.Array:
    """Return a column in the type of `field`.

    Parameters
    ----------
    column : pyarrow.Array
        What came in: another layout, time unit or width of the type is fine as long as no value is lost.
    field : pyarrow.Field
        A column of a stream, hence of a normal type (:func:`krishiv_py.types.normal_type`).
    rule : Rule
        What is made of other fields and types.
    consequence : str
        What follows from a refusal: "the batch was not sent".

    Raises
    ------
    SchemaError
        For another type, other fields of a struct, a value that does not fit, and a null where there may be none.
    """
    try:
        return fit_column(column, field, rule)
    except MisfitError as problem:
        raise problem.error(consequence) from None


def fit_batch(batch: pa.RecordBatch, schema: pa.Schema, rule: Rule) -> pa.RecordBatch:
    """Return a batch in the columns of a schema, as :func:`fitted_batch`, for callers with errors of their own.

    Raises
    ------
    MisfitError
        For what the rule does not take.
    """
    if not schema.names:  # rows without columns are counted
        return batch.select([])
    if not (batch.schema.equals(schema, check_metadata=True) and all(field.nullable for field in schema)):
        columns = []
        for i, field in zip(_taken(batch.schema.names, schema.names, rule, ()), schema, strict=True):
            columns.append(fit_column(pa.nulls(batch.num_rows) if i is None else batch.column(i), field, rule))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return copied(batch) if rule.copied else batch


_SLACK_BYTES: Final = 4_096
"""Buffers of so few bytes are copied whole: what the rows take of them costs more to find out than to copy."""


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of normal types in new memory; of a slice no more than its rows."""
    size = batch.get_total_buffer_size()
    if size <= _SLACK_BYTES or size <= 2 * batch.nbytes + _SLACK_BYTES:
        return batch.copy_to(pa.default_cpu_memory_manager())
    return pa.RecordBatch.from_arrays([copied_array(column) for column in batch.columns], schema=batch.schema)


def copied_array(values: pa.Array) -> pa.Array:
    """Return values of a normal type in new memory."""
    return pa.concat_arrays([values])


def fit_table(table: pa.Table, schema: pa.Schema, rule: Rule) -> pa.Table:
    """Return a table in the columns of a schema, as :func:`fit_batch`; of a table without rows the columns are looked at
    too.
    """
    given = table.schema
    parts = table.to_batches() or [pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in given], schema=given)]
    return pa.Table.from_batches([fit_batch(part, schema, rule) for part in parts], schema)


def fit_column(column: pa.Array, field: pa.Field, rule: Rule) -> pa.Array:
    """Return a column in the type of `field`, as :func:`fitted`, for callers with errors of their own.

    Raises
    ------
    MisfitError
        For what the rule does not take, and for nulls where there may be none.
    """
    column = fit(column, field.type, rule, (field.name,))
    if not field.nullable and column.null_count:
        what = f"column {field.name!r} holds nulls, but was declared without"
        raise MisfitError(what, f"{column.null_count} nulls", "fill them, or declare the column nullable")
    return column


def fit(values: pa.Array, wanted: pa.DataType, rule: Rule, path: Path) -> pa.Array:
    """Values of any depth in another type.

    Raises
    ------
    MisfitError
        With the path of the values that do not fit.
    """
    if values.type == wanted:
        return values
    is_ = pa.types
    if is_.is_null(values.type):
        return pa.nulls(len(values), wanted)
    given = values.type
    try:
        values = unpacked(values)
    except SchemaError:
        raise _wrong_type(given, wanted, path) from None
    given = values.type
    if is_.is_struct(given) and is_.is_struct(wanted):
        return _struct(values, wanted, rule, path)
    if _is_list(given) and is_.is_list(wanted):
        offsets = _offsets(values)
        return pa.ListArray.from_arrays(offsets, fit(values.flatten(), wanted.value_type, rule, path), type=wanted)
    if is_.is_map(given) and is_.is_map(wanted):
        return _map(values, wanted, rule, path)
    try:
        if is_.is_nested(given) or is_.is_nested(wanted):
            raise WrongTypeError(given, wanted)
        return rule.leaf(values, wanted)
    except (WrongTypeError, SchemaError):
        raise _wrong_type(given, wanted, path) from None
    except pa.ArrowException as problem:
        what, hint = (
            f"{_where(path)} does not fit {type_text(wanted)}",
            f"give values that {type_text(wanted)} holds, or declare a wider type",
        )
        raise MisfitError(what, _reason(problem), hint, _where(path), (given, wanted)) from None  # Arrow's text has the value
    except ValueError as problem:
        raise MisfitError(_where(path), str(problem), f"cast the column to {type_text(wanted)}") from None


def _reason(problem: Exception) -> str:
    """Return why Arrow refuses a cast, without the value that it names."""
    text = str(problem)
    if any(word in text for word in ("truncated", "lose data", "truncate", "data loss", "more digits")):
        return "the cast would lose data"
    if any(word in text for word in ("not in range", "out of bounds", "out of range", "too large", "overflow", "not fit")):
        return "a value is out of range"
    return "there is no exact cast"


def _where(path: Path) -> str:
    """Return a path as errors name it."""
    column, *fields = path or ("",)
    return f"field {'.'.join(fields)} of column {column!r}" if fields else f"column {column!r}"


def _wrong_type(given: pa.DataType, wanted: pa.DataType, path: Path) -> MisfitError:
    got, hint = f"{type_text(given)}, the schema has {type_text(wanted)}", f"cast the column to {type_text(wanted)}"
    if other := other_zone(given, wanted):
        hint += f", or declare it {other}"
    return MisfitError(f"{_where(path)} has the wrong type", got, hint, _where(path), (given, wanted))


def other_zone(given: pa.DataType, wanted: pa.DataType) -> str:
    """Return the type to declare for times that have a zone where the schema has none, or the other way; empty for anything
    else.
    """
    if not (pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted)) or (given.tz is None) == (wanted.tz is None):
        return ""
    return "timestamp_ntz" if given.tz is None else "timestamp"


class WrongTypeError(Exception):
    """Values of one type are never values of another."""


def _struct(values: pa.Array, wanted: pa.DataType, rule: Rule, path: Path) -> pa.Array:
    found_at = _taken([f.name for f in values.type], [f.name for f in wanted], rule, path)
    inside = values.flatten()  # a value under a null is none, whatever it is
    columns = [
        pa.nulls(len(values), field.type) if i is None else fit(inside[i], field.type, rule, (*path, field.name))
        for i, field in zip(found_at, wanted, strict=True)
    ]
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=mask)


def _map(values: pa.Array, wanted: pa.DataType, rule: Rule, path: Path) -> pa.Array:
    listed = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    entries = listed.flatten()
    keys = fit(entries.field(0), wanted.key_type, rule, path)
    items = fit(entries.field(1), wanted.item_type, rule, path)
    if keys.null_count:
        raise MisfitError(f"{_where(path)} has a map with a null as a key", f"{keys.null_count} nulls", "leave them out")
    return pa.MapArray.from_arrays(_offsets(listed), keys, items, type=wanted)


def _offsets(values: pa.Array) -> pa.Array:
    """Return where the items of each list begin among those of all lists that are not null; null for a list that is."""
    sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    bounds = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    if bounds[-1] >= 1 << 31:
        raise pa.ArrowInvalid("the lists of one batch have too many items")
    return pa.array(bounds.astype(np.int32), mask=np.append(missing, False) if missing.any() else None)


def _taken(given: Sequence[str], wanted: Sequence[str], rule: Rule, path: Path) -> list[int | None]:
    """Return the places of wanted names by a rule; None for a name that is missing and may be."""
    dot = "".join(f"{name}." for name in path)
    if rule.extra == "fail" and len(set(given)) < len(given):
        what = f"{_where(path)} has a field twice" if path else "the batch has a column twice"
        names = ", ".join(shown(dot + name) for name, times in Counter(given).items() if times > 1)
        raise MisfitError(what, names, "leave one of them out, or rename it")
    indices = places(wanted, given, any_case=rule.any_case, path=path)
    absent = [name for name, i in zip(wanted, indices, strict=True) if i is None] if rule.missing == "fail" else []
    unknown = set(range(len(given))) - set(indices) if rule.extra == "fail" else set()
    if absent and rule.extra == "skip":
        raise lacking(given, absent[0], path)
    if absent or unknown:
        what = f"{_where(path)} has other fields than the stream" if path else "the batch has other columns than the stream"
        missing, more = [dot + name for name in absent], [dot + given[i] for i in sorted(unknown)]
        got = f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(more) or 'none'}"
        raise MisfitError(what, got, f"the {'fields' if path else 'columns'} are: {', '.join(map(shown, wanted[:20]))}")
    return indices


def lacking(given: Sequence[str], name: str, path: Path = ()) -> MisfitError:
    """Return the error for a column or field that is not among the given ones."""
    has = ", ".join(given[:20]) + (", …" if len(given) > 20 else "")
    problem = MisfitError(f"no {_where((*path, name))}", f"it has: {has or '(none)'}", "add it, or leave it out of the schema")
    problem.lacks = True
    return problem


def fits(given: pa.DataType, wanted: pa.DataType, rule: Rule) -> bool:
    """Return whether a rule makes values of one type out of those of another."""
    try:
        fit(pa.array([], given), wanted, rule, ())
    except MisfitError:
        return False
    return True


def _infinite(column: pa.Array) -> int:
    """Return the number of infinite values: a cast of a number that is too large makes more of them."""
    return (pc.sum(pc.is_inf(column)).as_py() or 0) if pa.types.is_floating(column.type) else 0


def _is_list(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def unpacked(column: pa.Array) -> pa.Array:
    """Values instead of references to them: no dictionary, run or extension at the top."""
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        return unpacked(column.storage)
    if pa.types.is_run_end_encoded(type_):
        return unpacked(pc.run_end_decode(column))
    if pa.types.is_dictionary(type_):
        wide = column.dictionary.cast(normal_type(type_.value_type))  # views and halves cannot be looked up everywhere
        return wide.take(column.indices)
    return column


def open_parquet(file: Any) -> pq.ParquetFile:
    """Open a file, whose checksums are looked at where its writer, as Spark does, left some."""
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us", page_checksum_verification=True)


@attrs.frozen(eq=False)
class FileColumn:
    """A column of a file.

    Attributes
    ----------
    field : pyarrow.Field
        The column of the schema.
    name : str
        Its name in the file.
    rule : Rule
        What is made of other fields and types.
    meant : pyarrow.DataType or None
        Its type with a zone for the instants that the file keeps without one; None where there are none.
    """

    field: pa.Field
    name: str
    rule: Rule
    meant: pa.DataType | None = None

    def of(self, part: pa.RecordBatch) -> pa.Array:
        """Return its values in the type of the schema.

        Raises
        ------
        MisfitError
            When they do not fit.
        """
        column = part.column(self.name)
        return fit_column(column if self.meant is None else column.cast(self.meant), self.field, self.rule)


@attrs.frozen(eq=False)
class SameValue:
    """One value for all rows of the file."""

    value: pa.Scalar

    @classmethod
    def by_folder(cls, field: pa.Field, text: str | None) -> SameValue:
        """Return the value that the name of a folder gives."""
        try:
            return cls(_of_text(text, field.type))
        except pa.ArrowException as problem:
            what = f"the folder {field.name}={text} gives no {type_text(field.type)}"
            raise MisfitError(what, "", "rename the folder") from problem

    def of(self, part: pa.RecordBatch) -> pa.Array:
        """As many values as there are rows."""
        return pa.repeat(self.value, part.num_rows) if self.value.is_valid else pa.nulls(part.num_rows, self.value.type)


def _of_text(text: str | None, type_: pa.DataType) -> pa.Scalar:
    """Return a value as the name of a folder has it; a time without a zone is UTC."""
    written = pa.scalar(text, pa.string())
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        try:
            return written.cast(pa.timestamp(type_.unit)).cast(type_)
        except pa.ArrowInvalid:  # it has one
            return written.cast(type_)
    return written.cast(type_)


def file_columns(schema: pa.Schema, file: pq.ParquetFile, rule: Rule, *, instants: bool = False) -> dict[str, FileColumn]:
    """Return the columns of a file that are meant by those of a schema, by the names of the schema.

    Parameters
    ----------
    schema : pyarrow.Schema
        The wanted columns.
    file : pyarrow.parquet.ParquetFile
        The file.
    rule : Rule
        What is made of other names and types.
    instants : bool
        Whether all times without a zone are instants where the schema has a zone, as in a table whose log has the types.
        Otherwise only those are that older writers keep as INT96.

    Raises
    ------
    MisfitError
        When a name appears twice.
    """
    stored = file.schema_arrow
    columns = {}
    for field, i in zip(schema, places(schema.names, stored.names, any_case=rule.any_case), strict=True):
        if i is not None:
            columns[i] = FileColumn(field, stored.names[i], rule)
    if any(_has_zone(column.field.type) for column in columns.values()):
        leaves = [file.schema.column(i).physical_type == "INT96" for i in range(len(file.schema))]
        if instants or any(leaves):
            following = iter([True] * len(leaves) if instants else leaves)
            for i, field in enumerate(stored):  # the leaves of columns that are not wanted are passed over
                column = columns.get(i)
                meant = _zoned(field.type, None if column is None else column.field.type, following, rule)
                if column is not None and meant != field.type:
                    columns[i] = attrs.evolve(column, meant=meant)
    return {column.field.name: column for column in columns.values()}


def _has_zone(type_: pa.DataType) -> bool:
    if pa.types.is_timestamp(type_):
        return type_.tz is not None
    return any(_has_zone(type_.field(i).type) for i in range(type_.num_fields))


def _zoned(given: pa.DataType, wanted: pa.DataType | None, leaves: Iterator[bool], rule: Rule) -> pa.DataType:
    """Return a type in which leaves that are instants have the zone that the schema gives them."""
    is_ = pa.types
    if isinstance(given, pa.BaseExtensionType):
        _zoned(given.storage_type, None, leaves, rule)
        return given
    if is_.is_struct(given):
        inner: dict[int | None, pa.DataType] = {}
        if wanted is not None and is_.is_struct(wanted):
            indices = places([f.name for f in wanted], [f.name for f in given], any_case=rule.any_case)
            inner = {types: f.type for types, f in zip(indices, wanted, strict=True)}
        return pa.struct([f.with_type(_zoned(f.type, inner.get(types), leaves, rule)) for types, f in enumerate(given)])
    if is_.is_map(given):
        pair = (wanted.key_type, wanted.item_type) if wanted is not None and is_.is_map(wanted) else (None, None)
        key = given.key_field.with_type(_zoned(given.key_type, pair[0], leaves, rule))
        return pa.map_(key, given.item_field.with_type(_zoned(given.item_type, pair[1], leaves, rule)))
    if is_.is_list(given) or is_.is_large_list(given) or is_.is_fixed_size_list(given):
        inside = wanted.value_type if wanted is not None and is_.is_list(wanted) else None
        field = given.value_field.with_type(_zoned(given.value_type, inside, leaves, rule))
        if is_.is_fixed_size_list(given):
            return pa.list_(field, given.list_size)
        return pa.list_(field) if is_.is_list(given) else pa.large_list(field)
    instant = next(leaves, False)
    zone = wanted is not None and is_.is_timestamp(wanted) and wanted.tz is not None
    if instant and zone and is_.is_timestamp(given) and given.tz is None:
        return pa.timestamp(given.unit, "UTC")
    return given


def explained(problem: MisfitError) -> str:
    """Return an error in the words of files: the type that is there, and the one of the schema."""
    if problem.types is None:
        return str(problem)
    given, wanted = problem.types
    way = ""
    if other := other_zone(given, wanted):
        way = f"; declare it {other} there"
    elif pa.types.is_timestamp(given) and given.unit == "ns" and pa.types.is_timestamp(wanted):
        way = '; nanoseconds="cut" would cut its times to microseconds'
    return f"{problem.where} is {type_text(given)}, and its values do not fit {type_text(wanted)} of the schema{way}"
