"""JSON texts as Arrow columns, whole blocks by Arrow and one by one where a block does not fit, and columns as JSON texts.

Arrow stops at the first value that is wrong and does not say in which line. So a block it refuses, or in which it finds another
number of rows than there are lines, is read again by Python, line by line, by the same rules.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import functools
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from krishiv_py.connectors.fit import FILE, fit
from krishiv_py.connectors.values import check_years, not_written
from krishiv_py.types import article, type_text

_FLOATS: Final = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
    "INF": math.inf,
    "+INF": math.inf,
    "-INF": -math.inf,
}
_INTEGER: Final = re.compile(r"-?\d{1,40}")
_FINER: Final = re.compile(r"(\.\d{6})\d+")


class JsonNumber(str):
    """A number as it was written."""

    __slots__ = ()


class JsonObject(dict[str, Any]):
    """An object that knows which of its names appear twice."""

    twice: frozenset[str] = frozenset()
    _small: dict[str, list[str]] | None = None

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> JsonObject:
        """From the pairs as they were written."""
        json_object = cls(pairs)
        if len(json_object) != len(pairs):
            names = [name for name, _ in pairs]
            json_object.twice = frozenset(name for name in names if names.count(name) > 1)
        return json_object

    def has(self, name: str, as_written: bool) -> bool:
        """Return whether it has a name, maybe twice."""
        return name in self or (not as_written and name.lower() in self._by_small())

    def _by_small(self) -> dict[str, list[str]]:
        if self._small is None:
            self._small = {}
            for one in self:
                self._small.setdefault(one.lower(), []).append(one)
        return self._small

    def one(self, kind: str, name: str, as_written: bool) -> Any:
        """Return the value of a name as it is written, else of the one that differs in case only; None if it is missing.

        Raises
        ------
        ValueError
            When it appears twice.
        """
        if name in self:
            same = [name]
        elif as_written:
            return None
        else:
            same = self._by_small().get(name.lower(), [])
        if len(same) > 1 or (same and same[0] in self.twice):
            raise ValueError(f"{kind} {name!r} appears twice")
        return self[same[0]] if same else None


def kind(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if isinstance(value, JsonNumber):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return {bool: "a boolean", list: "a list", JsonObject: "an object"}.get(type(value), "null")


@functools.cache
def converter(type_: pa.DataType, as_written: bool) -> Callable[[Any], Any]:
    """Return a function from JSON values (never null) to Python values that Arrow takes for the type; it raises ValueError.

    Fields of objects are found as columns are: by their names `as_written`, or in another case too (:meth:`JsonObject.one`).
    """
    is_ = pa.types
    if is_.is_boolean(type_):
        return lambda v: v if isinstance(v, bool) else _refuse(v, type_)
    if is_.is_integer(type_):
        return functools.partial(_integer, type_)
    if is_.is_floating(type_):
        return functools.partial(_float, type_)
    if is_.is_string(type_):
        return _text
    if is_.is_timestamp(type_):
        return functools.partial(_instant, type_)
    if is_.is_list(type_):
        return functools.partial(_list, type_, as_written)
    if is_.is_struct(type_):
        return functools.partial(_struct, type_, as_written)
    if is_.is_map(type_):
        return functools.partial(_map, type_, as_written)
    return functools.partial(_other, type_)


def _refuse(value: Any, type_: pa.DataType) -> Any:
    raise ValueError(f"{kind(value)} is not {article(type_text(type_))}")


def _integer(type_: pa.DataType, value: Any) -> int:
    if isinstance(value, JsonNumber) and _INTEGER.fullmatch(value):
        number = int(value)
        if -(1 << (type_.bit_width - 1)) <= number < 1 << (type_.bit_width - 1):
            return number
    return int(_refuse(value, type_))


def _float(type_: pa.DataType, value: Any) -> float:
    """Return a number, or one of the texts by which Spark writes what JSON has no number for."""
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if not isinstance(value, JsonNumber):
        return float(_refuse(value, type_))
    number = float(value)
    if math.isinf(number):
        _refuse(value, type_)
    if type_.bit_width == 32:
        try:
            struct.pack("f", number)
        except OverflowError:
            return math.copysign(math.inf, number)
    return number


def _text(value: Any) -> str:
    """Return a text; other values as they were written, as in Spark."""
    if isinstance(value, JsonNumber):
        return str.__str__(value)
    if isinstance(value, str):
        return _encodable(value)
    return str(value).lower() if isinstance(value, bool) else _encodable(_written(value))


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise ValueError("half a surrogate pair") from problem
    return text


def _written(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return str.__str__(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _instant(type_: pa.DataType, value: Any) -> Any:
    """ISO 8601; without a zone it is UTC. Digits after the sixth of a second are cut off."""
    if isinstance(value, str) and not isinstance(value, JsonNumber):
        text = pa.array([_FINER.sub(r"\1", value)])
        for parsed in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return text.cast(parsed).cast(pa.int64()).cast(type_)[0].value
            except pa.ArrowInvalid:
                continue
    return _refuse(value, type_)


def _list(type_: pa.DataType, as_written: bool, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(value, type_)
    convert = converter(type_.value_type, as_written)
    return [None if v is None else convert(v) for v in value]


def _struct(type_: pa.DataType, as_written: bool, value: Any) -> dict[str, Any]:
    if not isinstance(value, JsonObject):
        return dict(_refuse(value, type_))
    fields = {}
    for field in type_:
        one = value.one("field", field.name, as_written)
        try:
            fields[field.name] = None if one is None else converter(field.type, as_written)(one)
        except ValueError as problem:
            raise ValueError(f"field {field.name!r}: {problem}") from problem
    return fields


def _map(type_: pa.DataType, as_written: bool, value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, JsonObject):
        return list(_refuse(value, type_))
    if value.twice:
        raise ValueError("a key of the map occurs twice")
    item = converter(type_.item_type, as_written)
    if pa.types.is_binary(type_.key_type):
        return [(_other(type_.key_type, k), None if v is None else item(v)) for k, v in value.items()]
    try:
        keys = pa.array(list(value), pa.string()).cast(type_.key_type).to_pylist()
    except pa.ArrowInvalid:
        keys = list(_refuse(value, type_))
    return [(k, None if v is None else item(v)) for k, v in zip(keys, value.values(), strict=True)]


def _other(type_: pa.DataType, value: Any) -> Any:
    """Dates in ISO form, decimals as numbers or texts, bytes as base64, as Spark writes them."""
    if isinstance(value, str):
        try:
            if pa.types.is_date32(type_):
                return dt.date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else _refuse(value, type_)
            if pa.types.is_decimal(type_):
                return pa.scalar(decimal.Decimal(value)).cast(type_).as_py()
            if pa.types.is_binary(type_) and not isinstance(value, JsonNumber):
                return base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error, decimal.InvalidOperation, pa.ArrowException):
            return _refuse(value, type_)
    return _refuse(value, type_)


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
        lines = np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (not block.endswith(b"\n"))
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
    if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
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


_TO_ESCAPE: Final = r'["\\\x00-\x1f\x7f]'
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_NO_NUMBER: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def objects(table: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Each row as one JSON object of the columns `names`; null is written as ``null``."""
    if not table.num_rows:
        return pa.chunked_array([[]], pa.string())
    parts: list[Any] = []
    for i, name in enumerate(names):
        parts += [("," if i else "{") + json.dumps(name, ensure_ascii=False) + ":", texts(table.column(name), name)]
    return pc.binary_join_element_wise(*(parts or ["{"]), "}", "")


def texts(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Each value of a column called `name` as a JSON text that the JSON reader of the library reads back as the same value.

    Raises
    ------
    OperatorError
        For a time before year 1 or after 9999, and a map that has a key twice.
    """
    check_years(values, name, "JSON")
    return pc.fill_null(_texts(values, name), "null").cast(pa.string())


def has_text(type_: pa.DataType) -> bool:
    """Return whether the JSON reader of the library reads values of a type back: durations it does not."""
    return not pa.types.is_duration(type_) and all(has_text(type_.field(i).type) for i in range(type_.num_fields))


def _texts(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    type_, is_ = values.type, pa.types
    if is_.is_boolean(type_) or is_.is_integer(type_) or is_.is_decimal(type_):
        return values.cast(pa.string())
    if is_.is_float32(type_) or is_.is_float64(type_):
        plain = values.cast(pa.string())
        whole = pc.match_substring_regex(plain, "^-?[0-9]+$")  # a reader that asks values for their type shall see a double
        plain = pc.binary_join_element_wise(plain, pc.if_else(whole, ".0", ""), "")
        for text, instead in _NO_NUMBER.items():
            plain = pc.if_else(pc.equal(plain, text), instead, plain)
        return plain
    if is_.is_string(type_):
        return _quoted(values)
    if is_.is_timestamp(type_):
        utc = values.cast(pa.timestamp("us", type_.tz))
        return pc.strftime(_in_utc(utc), '"%Y-%m-%dT%H:%M:%SZ"' if type_.tz else '"%Y-%m-%dT%H:%M:%S"')
    if is_.is_date(type_):
        return pc.strftime(values.cast(pa.timestamp("s")), '"%Y-%m-%d"')
    try:
        return pa.chunked_array([[None if v is None else _one(v, type_) for v in values.to_pylist()]], pa.string())
    except OverflowError:
        raise not_written(name, "JSON", "a time before year 1 or after 9999", "filter such rows") from None
    except KeyError as problem:
        hint = "leave one of them out: an object has each name once"
        raise not_written(name, "JSON", f"a map with the key {problem} twice", hint) from None


def _in_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values if values.type.tz is None else values.cast(pa.timestamp("us", "UTC"))


def _quoted(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts in quotes; only those with something to escape pass through Python."""
    rare = pc.fill_null(pc.match_substring_regex(values, _TO_ESCAPE), False)
    if not pc.any(rare).as_py():
        return pc.binary_join_element_wise('"', values, '"', "")
    quoted = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values.to_pylist()]
    return pa.chunked_array([quoted], pa.string())


def _one(value: Any, type_: pa.DataType) -> str:
    return json.dumps(_as_json(value, type_), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _as_json(value: Any, type_: pa.DataType) -> Any:
    """Return a value of a list, struct or map, or bytes, as JSON has it."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {f.name: _as_json(value[f.name], f.type) for f in type_}
    if pa.types.is_map(type_):
        plain: dict[str, Any] = {}
        for k, v in value:
            if (key := _name(k, type_.key_type)) in plain:
                raise KeyError(key)
            plain[key] = _as_json(v, type_.item_type)
        return plain
    if isinstance(value, list):
        return [_as_json(v, type_.value_type) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        text = value.astimezone(dt.timezone.utc).isoformat() if value.tzinfo else value.isoformat()
        return text.replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return _interval(value)
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _interval(value: dt.timedelta) -> str:
    """Return a duration as Spark writes it."""
    seconds, rest = divmod(abs(value) // _MICROSECOND, 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    minutes, hours = seconds // 60, seconds // 3_600
    sign = "-" if value < dt.timedelta() else ""
    return f"INTERVAL '{sign}{hours // 24} {hours % 24:02d}:{minutes % 60:02d}:{seconds % 60:02d}{fraction}' DAY TO SECOND"


def _name(key: Any, type_: pa.DataType) -> str:
    plain = _as_json(key, type_)
    return plain if isinstance(plain, str) else json.dumps(plain)
