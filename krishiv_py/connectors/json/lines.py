"""JSON lines to columns: whole blocks by Arrow, and line by line where a block does not fit, to find the lines that do not.

Arrow stops at the first value that is wrong and does not say in which line. So a block it refuses, or in which it finds another
number of rows than there are lines, is read again by Python, line by line, by the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from krishiv_py.connectors.fit import FILE, fit
from krishiv_py.connectors.json.values import JsonNumber, JsonObject, converter

BLOCK_BYTES: Final = 8 << 20
_LONG_LINE: Final = 4_000
_MANY_LEVELS: Final = 1_000
_BOM: Final = b"\xef\xbb\xbf"
_ESCAPED: Final = re.compile(rb"\\u([0-9a-fA-F]{4})")
_ESCAPED_OTHERWISE: Final = re.compile(r'["\\/\x00-\x1f]')
"""Characters of a name that have, or may have, a short escape."""


@attrs.frozen
class BadLine:
    """A line that is not a row: its number from 1, its text, and why."""

    line: int
    text: str
    problem: str


@attrs.frozen(eq=False)
class ParsedBlock:
    """Holds what a block gave: a batch of the wanted columns, and the lines that are not rows."""

    batch: pa.RecordBatch
    bad: list[BadLine]


@attrs.define(eq=False)
class JsonLines:
    """Reads one file.

    Attributes
    ----------
    schema : pyarrow.Schema
        The wanted columns; at least one.
    known : tuple of str
        All columns of the source: a line with none of them is not a row.
    as_written : bool
        Whether names are as in the schema. Otherwise each object is read as other files are: by the name as it is written in
        the schema, else by the one that differs in case only.
    """

    schema: pa.Schema
    known: tuple[str, ...]
    as_written: bool = False
    _spelling: dict[str, str] | None = attrs.field(default=None, init=False)
    _line: int = attrs.field(default=1, init=False)

    @classmethod
    def exact(cls, schema: pa.Schema, known: tuple[str, ...]) -> JsonLines:
        """For texts that come one by one: names are written as in the schema."""
        lines = cls(schema, known, as_written=True)
        lines._spelling = {name: name for name in known}
        return lines

    def one(self, raw: bytes) -> list[Any]:
        """Return the values of a text that is one object, in the order of the columns.

        Raises
        ------
        ValueError
            When it is not a row; says why.
        """
        try:
            objects = _objects(raw, lists=False)
            return self._row(objects[0], self._wanted())
        except (ValueError, RecursionError) as problem:
            raise ValueError(_why(problem)) from problem

    def read(self, stream: Any) -> Iterator[ParsedBlock]:
        """Yield the rows of a file, block by block."""
        for block in blocks(stream, BLOCK_BYTES):
            if not self.as_written:
                self._spelling = self._spelt(block)
            batch = self.by_arrow(block)
            if batch is not None:
                self._line += block.count(b"\n")
                yield ParsedBlock(batch, [])
            else:
                yield self._by_line(block)

    def _spelt(self, block: bytes) -> dict[str, str] | None:
        """Return how a block spells each column; None if it may be in more than one way, which only reading by line shows."""
        names = {*self.known, *(name for field in self.schema for name in _inside(field.type))}
        letters = "".join(names).lower()
        if b"\\" in block:
            if _ESCAPED_OTHERWISE.search(letters):
                return None
            if any(chr(int(code, 16)).lower() in letters for code in set(_ESCAPED.findall(block))):
                return None
        try:
            text = block.decode()
        except UnicodeDecodeError:
            return None
        small, spelling = text.lower(), {}
        only_small = small == text
        for name in names:
            spelling[name] = name
            if only_small and name == name.lower():
                continue
            if small.count(f'"{name.lower()}"') != text.count(f'"{name}"'):
                named = re.findall(rf'"({re.escape(name)})"[ \t\r\n]*:', text, re.IGNORECASE)
                spellings = {n for n in named if n.lower() == name.lower()}
                if len(spellings) > 1:
                    return None
                spelling[name] = next(iter(spellings), name)
        return spelling

    def by_arrow(self, block: bytes) -> pa.RecordBatch | None:
        """Return the block as Arrow reads it; None if a line may be no row."""
        if self._spelling is None:
            return None
        fast = [t for t in (_fast_type(f.type) for f in self.schema) if t is not None]
        if len(fast) < len(self.schema) or _may_end_arrow(block) or not _plain(block):
            return None
        for unit in ("us", "ns"):
            fields = [
                pa.field(self._spelling[f.name], pa.timestamp(unit, t.tz) if pa.types.is_timestamp(t) else self._as_spelt(t))
                for f, t in zip(self.schema, fast, strict=True)
            ]
            try:
                table = pj.read_json(
                    pa.BufferReader(block),
                    read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
                    parse_options=pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
                )
                batch = self._batch(table, block)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # more than six digits of a second, or a line that is wrong
            return batch
        return None

    def _as_spelt(self, type_: pa.DataType) -> pa.DataType:
        """Return a type with the fields of its structs as the block spells them."""
        if pa.types.is_struct(type_):
            spelling = self._spelling or {}
            return pa.struct([pa.field(spelling.get(f.name, f.name), self._as_spelt(f.type)) for f in type_])
        return pa.list_(self._as_spelt(type_.value_type)) if pa.types.is_list(type_) else type_

    def _batch(self, table: pa.Table, block: bytes) -> pa.RecordBatch | None:
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if table.num_rows != lines:
            return None
        table.validate(full=True)  # Arrow's reader lets bytes through that are not UTF-8
        arrays = []
        empty = None
        for column, field in zip(table.combine_chunks().columns, self.schema, strict=True):
            array = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
            empty = array.is_null() if empty is None else pc.and_(empty, array.is_null())
            if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
                array = pc.floor_temporal(array, unit="microsecond")
            nested = pa.types.is_nested(field.type)
            arrays.append(fit(array, field.type, FILE, (field.name,)) if nested else array.cast(field.type))
        if empty is not None and pc.any(empty).as_py():
            return None  # is it a line without any of the columns?
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _by_line(self, block: bytes) -> ParsedBlock:
        wanted = self._wanted()
        columns: list[list[Any]] = [[] for _ in wanted]
        bad: list[BadLine] = []
        for line, raw in enumerate(block.splitlines(), self._line):
            if not raw.strip():
                continue
            try:
                rows = [self._row(json_object, wanted) for json_object in _objects(raw)]
            except (ValueError, RecursionError) as problem:
                bad.append(BadLine(line, raw.decode("utf-8", "backslashreplace"), _why(problem)))
                continue
            for row in rows:
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
        self._line += len(block.splitlines())
        arrays = [pa.array(values, f.type) for values, f in zip(columns, self.schema, strict=True)]
        return ParsedBlock(pa.RecordBatch.from_arrays(arrays, schema=self.schema), bad)

    def _wanted(self) -> list[tuple[str, Any]]:
        return [(f.name, converter(f.type, self.as_written)) for f in self.schema]

    def _row(self, json_object: JsonObject, wanted: list[tuple[str, Any]]) -> list[Any]:
        if not any(json_object.has(name, self.as_written) for name in self.known):
            has = ", ".join(list(json_object)[:20]) or "nothing"
            raise ValueError(f"none of the columns {', '.join(self.known[:20])}; it has: {has}")
        values = []
        for name, convert in wanted:
            value = json_object.one("column", name, self.as_written)
            try:
                values.append(None if value is None else convert(value))
            except ValueError as problem:
                raise ValueError(f"column {name!r}: {problem}") from problem
        return values


def blocks(stream: Any, size: int) -> Iterator[bytes]:
    """Whole lines, about `size` bytes at a time, without the mark some editors begin a file with."""
    rest: list[bytes] = []
    first = True
    while data := stream.read(size):
        if first:
            data, first = data.removeprefix(_BOM), False
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, data[:cut]])
            rest = []
        if cut < len(data):
            rest.append(data[cut:])
    if rest:
        yield b"".join(rest)


def _plain(block: bytes) -> bool:
    """Return whether Arrow finds the lines of a block and their names: to it a lone CR is a blank, any bytes a name."""
    if block.count(b"\r") != block.count(b"\r\n"):
        return False
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


def _may_end_arrow(block: bytes) -> bool:
    """Return whether Arrow's reader may end the process: by a first line that is null, or a line so deep that its stack
    runs out.
    """
    if not block[:_LONG_LINE].lstrip().startswith(b"{"):
        return True
    start = 0
    while len(block) - start > _LONG_LINE:
        end = block.rfind(b"\n", start, start + _LONG_LINE)
        if end < 0:
            end = block.find(b"\n", start + _LONG_LINE)
            end = len(block) if end < 0 else end
            if block.count(b"[", start, end) + block.count(b"{", start, end) > _MANY_LEVELS:
                return True
        start = end + 1
    return False


def _objects(raw: bytes, *, lists: bool = True) -> list[JsonObject]:
    """Return the objects of a line: one, or (with `lists`) those of a list."""
    value = json.loads(
        raw.decode("utf-8"),
        object_pairs_hook=JsonObject.of,
        parse_int=JsonNumber,
        parse_float=JsonNumber,
        parse_constant=JsonNumber,
    )
    objects = value if lists and isinstance(value, list) else [value]
    if not all(isinstance(o, JsonObject) for o in objects) or not objects:
        raise ValueError("no JSON object")
    return objects


def _why(problem: Exception) -> str:
    if isinstance(problem, json.JSONDecodeError):
        return f"incomplete JSON object ({problem.msg} at character {problem.pos + 1})"
    if isinstance(problem, UnicodeDecodeError):
        return f"not UTF-8 at byte {problem.start + 1}"
    return "nested too deeply" if isinstance(problem, RecursionError) else str(problem)


def _inside(type_: pa.DataType) -> list[str]:
    """Return the names of all fields inside a type."""
    fields = [type_.field(i) for i in range(type_.num_fields)]
    names = [f.name for f in fields] if pa.types.is_struct(type_) else []
    return names + [name for field in fields for name in _inside(field.type)]


def _fast_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the options of Arrow's reader; None for types it reads otherwise than Spark does, or not at all."""
    is_ = pa.types
    if is_.is_boolean(type_) or is_.is_integer(type_) or is_.is_floating(type_) or is_.is_string(type_):
        return None if is_.is_float16(type_) else type_
    if is_.is_timestamp(type_):
        return type_
    if is_.is_date32(type_):
        return pa.string()
    if is_.is_list(type_):
        inner = _fast_type(type_.value_type)
        return type_ if inner == type_.value_type and not is_.is_timestamp(inner) else None
    if is_.is_struct(type_):
        inners = [_fast_type(f.type) for f in type_]
        plain = all(i == f.type and not is_.is_timestamp(i) for i, f in zip(inners, type_, strict=True))
        return type_ if plain and len(inners) else None
    return None
