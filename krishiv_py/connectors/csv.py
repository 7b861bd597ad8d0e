"""CSV as Spark reads it: lines to fields, and fields to values.

Lines whose quotes stand around whole fields are read by Arrow. Others, with quotes within a field or with escapes, are read
character by character: Spark takes a quote that ends no field as a character, and then goes on to the next separator.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from krishiv_py.arrays.types import numpy_type
from krishiv_py.errors import PlanError, shown
from krishiv_py.functions.computing import text
from krishiv_py.types import type_text, zone_of

Mask: TypeAlias = npt.NDArray[np.bool_]
Converted: TypeAlias = "tuple[pa.Array, Mask]"
"""Values, and which fields are none."""
_SHORT: Final = r"^-?[0-9]{1,18}$"
_WHOLE: Final = re.compile(r"[+-]?\d+")
_REAL: Final = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?$"
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?[0-9]{1,9})?")
_HEX: Final = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_NAMED: Final = {"NaN": "nan", "Inf": "inf", "-Inf": "-inf"}
_SIGNED: Final = re.compile(r"[+-]?(NaN|Infinity)")
_BLANKS: Final = "".join(map(chr, range(0x21)))
_ZONED: Final = re.compile(r"(.*[0-9]) ?([A-Za-z][A-Za-z0-9_+/-]*)", re.DOTALL)
_FOUR_DIGITS: Final = re.compile(r"(.*:.*:.*[+-])([0-9]{2})([0-9]{2})", re.DOTALL)
_SHORT_ZONES: Final = {"EST": "-05:00", "MST": "-07:00", "HST": "-10:00"} | {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Java's names of three letters."""
_EPOCH: Final = dt.datetime(1970, 1, 1)
_FIRST_US: Final = -62_135_596_800_000_000
_BEHIND_US: Final = 253_402_300_800_000_000
"""The years 1 to 9999."""
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def values(column: pa.Array, type_: pa.DataType) -> Converted:
    """Return fields as values of a type, and a mask of those that are none.

    Examples
    --------
    >>> values(pa.array(["1", " 1", "+2", None]), pa.int8())[0].to_pylist()
    [1, None, 2, None]
    """
    for holds, convert in _CONVERTERS:
        if holds(type_):
            return convert(column, type_)
    raise AssertionError(type_)


def unreadable(schema: pa.Schema) -> list[str]:
    """Columns whose type has no form in CSV, as Spark has it."""
    return [f"{f.name} {type_text(f.type)}" for f in schema if not any(holds(f.type) for holds, _ in _CONVERTERS)]


def _texts(column: pa.Array, type_: pa.DataType) -> Converted:
    return column, np.zeros(len(column), np.bool_)


def _one_by_one(column: pa.Array, ok: Any, known: pa.Array, one: Callable[[str], Any]) -> Converted:
    """Values that are `known` where `ok`, and those of the few others by a function that raises ValueError."""
    type_ = known.type
    odd = np.flatnonzero(~text.flags(ok) & text.flags(pc.is_valid(column)))
    bad = np.zeros(len(column), np.bool_)
    if not len(odd):
        return known, bad
    values: list[Any] = []
    for row, field in zip(odd.tolist(), column.take(pa.array(odd)).to_pylist(), strict=True):
        try:
            values.append(one(field))
        except (ValueError, ArithmeticError):
            bad[row] = True
            values.append(None)
    at_odd = np.zeros(len(column), np.bool_)
    at_odd[odd] = True
    return pc.replace_with_mask(known, pa.array(at_odd), pa.array(values, type_)), bad


def _kept(column: pa.Array, ok: Any) -> pa.Array:
    return pc.if_else(ok, column, pa.scalar(None, pa.string()))


def _whole(column: pa.Array, type_: pa.DataType) -> Converted:
    ok = pc.match_substring_regex(column, _SHORT)
    wide = pc.cast(_kept(column, ok), pa.int64())
    bounds = np.iinfo(numpy_type(type_))
    lowest, highest = bounds.min, bounds.max

    def one(field: str) -> int:
        if not _WHOLE.fullmatch(field):
            raise ValueError
        return ranged(int(field))

    def ranged(value: int) -> int:
        if not lowest <= value <= highest:
            raise ValueError
        return value

    fits = pc.and_(ok, pc.and_(pc.greater_equal(wide, lowest), pc.less_equal(wide, highest)))
    known = pc.cast(pc.if_else(fits, wide, pa.scalar(None, pa.int64())), type_)
    return _one_by_one(column, fits, known, one)


def _real(column: pa.Array, type_: pa.DataType) -> Converted:
    ok = pc.match_substring_regex(column, _REAL)

    def one(field: str) -> float:
        if field in _NAMED:
            return float(_NAMED[field])
        inner = field.strip(_BLANKS)
        if signed := _SIGNED.fullmatch(inner):
            return float("nan") if signed[1] == "NaN" else float(inner.replace("Infinity", "inf"))
        inner = inner[:-1] if inner[-1:] in ("d", "D", "f", "F") else inner
        if _HEX.fullmatch(inner):
            return float.fromhex(inner)
        if not _NUMBER.fullmatch(inner):
            raise ValueError
        return nearest(inner)

    def nearest(field: str) -> float:
        if pa.types.is_float64(type_):
            return float(field)
        try:
            return float(pc.cast(pa.scalar(field.removeprefix("+")), type_).as_py())
        except pa.ArrowInvalid:  # too large, or too small
            with np.errstate(over="ignore"):
                return float(np.float32(field))

    try:
        known = pc.cast(_kept(column, ok), type_)
    except pa.ArrowInvalid:
        ok = pa.array(np.zeros(len(column), np.bool_))
        known = pa.nulls(len(column), type_)
    return _one_by_one(column, ok, known, one)


def _boolean(column: pa.Array, type_: pa.DataType) -> Converted:
    small = pc.utf8_lower(column)
    true, false = pc.equal(small, "true"), pc.equal(small, "false")
    return _kept_flags(true, pc.or_(true, false)), text.flags(pc.invert(pc.or_(true, false)))


def _kept_flags(flags: pa.Array, ok: pa.Array) -> pa.Array:
    return pc.if_else(ok, flags, pa.scalar(None, pa.bool_()))


def _decimal(column: pa.Array, type_: pa.DataType) -> Converted:
    whole, scale = type_.precision - type_.scale, type_.scale
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    ok = pc.match_substring_regex(column, rf"^-?[0-9]{{1,{whole}}}{fraction}$" if whole else r"$^")

    def one(field: str) -> decimal.Decimal:
        plain = field.replace(",", "")
        if not _DECIMAL.fullmatch(plain):
            raise ValueError
        made, long = text.quantized([decimal.Decimal(plain)], type_)
        if long[0]:
            raise ValueError
        value: decimal.Decimal = made[0].as_py()
        return value

    return _one_by_one(column, ok, pc.cast(_kept(column, ok), type_), one)


def _date(column: pa.Array, type_: pa.DataType) -> Converted:
    dates, bad = text.dates(column)
    return dates, _mask(bad, len(column))


def _time(column: pa.Array, type_: pa.DataType) -> Converted:
    moments, faults = text.times(column, type_)
    bad = _mask(faults, len(column))
    if type_.tz is None:  # a zone would say another time
        bad |= text.flags(pc.match_substring_regex(column, r"[0-9]:[^+-]*([A-Za-z+-].*)$"))
        return pc.if_else(pa.array(bad), pa.scalar(None, type_), moments), bad

    odd = np.flatnonzero(bad)
    if not len(odd):
        return moments, bad
    us, fits = _times_otherwise(column.take(pa.array(odd)).to_pylist(), type_)
    bad[odd] = ~fits
    mask = np.zeros(len(column), np.bool_)
    mask[odd] = True
    return pc.replace_with_mask(moments, pa.array(mask), pa.array(us, pa.int64(), mask=~fits).cast(type_)), bad


def _times_otherwise(fields: Sequence[str], type_: pa.DataType) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return what fields are whose zone is a name or four digits, in microseconds, and which are times."""
    inner = [field.strip(_BLANKS) for field in fields]
    zones: list[dt.tzinfo | None] = [None] * len(inner)
    by_name: dict[str, dt.tzinfo | None] = {}
    for row, field in enumerate(inner):
        if ":" not in field:
            continue
        if field[-1] == ".":
            inner[row] = field = field[:-1]
        if numbered := _FOUR_DIGITS.fullmatch(field):
            inner[row] = f"{numbered[1]}{numbered[2]}:{numbered[3]}"
        elif (named := _ZONED.fullmatch(field)) and named[1].count(":") >= 2:  # a zone comes after seconds
            name = named[2]
            if name not in by_name:
                by_name[name] = zone_of(_SHORT_ZONES.get(name, name))
            zones[row] = by_name[name]
            inner[row] = "" if zones[row] is None else named[1]
    us, fits = _microseconds(inner, type_)
    far = [row for row, zone in enumerate(zones) if zone is not None]
    local, are_times = _microseconds([inner[row] for row in far], pa.timestamp("us"))
    for row, moment, is_time in zip(far, local.tolist(), are_times.tolist(), strict=True):
        fits[row] = is_time
        with contextlib.suppress(OverflowError):
            zoned = (_EPOCH + moment * _MICROSECOND).replace(tzinfo=zones[row]).astimezone(dt.timezone.utc)
            us[row] = (zoned.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
            continue
        fits[row] = False
    return us, fits


def _microseconds(fields: list[str], type_: pa.DataType) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return fields as times in microseconds, and which of them are times that Python has."""
    moments, bad = text.times(pa.array(fields, pa.string()), type_)
    us: npt.NDArray[np.int64] = pc.fill_null(moments.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).copy()
    fits = ~_mask(bad, len(us)) & (us >= _FIRST_US) & (us < _BEHIND_US)
    return np.where(fits, us, 0), fits


def _mask(bad: Mask | None, n: int) -> Mask:
    return np.zeros(n, np.bool_) if bad is None else bad


_CONVERTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], Converted]], ...]] = (
    (lambda t: bool(pa.types.is_string(t)), _texts),
    (lambda t: bool(pa.types.is_signed_integer(t)), _whole),
    (lambda t: bool(pa.types.is_float32(t) or pa.types.is_float64(t)), _real),
    (lambda t: bool(pa.types.is_boolean(t)), _boolean),
    (lambda t: bool(pa.types.is_decimal(t)), _decimal),
    (lambda t: bool(pa.types.is_date32(t)), _date),
    (lambda t: bool(pa.types.is_timestamp(t)), _time),
)
_NONE: Final = ""
_BLANK: Final = " "
"""Spark takes this character, and all before it, as blanks."""
_MOST_COLUMNS: Final = 100
"""Lines of more columns, with quotes, are read one by one: the pattern for them would be too large."""
_SWITCHES: Final = {"true": True, "false": False}
_UTF_8: Final = ("utf-8", "utf8", "us-ascii")
_LATIN: Final = ("iso-8859-1", "iso8859-1", "latin1")
_NAMES: Final = (
    *("header", "sep", "delimiter", "quote", "escape", "nullValue", "emptyValue", "comment"),
    *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "encoding", "charset", "timeZone"),
)


@attrs.frozen(slots=False)
class CsvOptions:
    """Options of Spark's reader that this one takes, with Spark's defaults.

    Attributes
    ----------
    header : bool or None
        Whether the first line of a file names the columns; None where nobody said it: then it does not.
    separator, quote, escape, comment : str
        One character each; of `comment` none means that there are no comments.
    null, empty : str
        The text that is null, and that of a field that is empty between quotes.
    leading, trailing : bool
        Whether blanks around a field are left out.
    latin : bool
        Whether files are ISO-8859-1 and not UTF-8.
    """

    header: bool | None = None
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    null: str = ""
    empty: str = ""
    comment: str = _NONE
    leading: bool = False
    trailing: bool = False
    latin: bool = False

    @classmethod
    def of(cls, options: Iterable[tuple[str, str]]) -> CsvOptions:
        """Return the options by their names in Spark.

        Raises
        ------
        PlanError
            For one that only Spark follows, or a value that is none.
        """
        given = {name.lower(): (name, value) for name, value in options}
        for name, value in given.values():
            if name.lower() not in map(str.lower, _NAMES):
                raise _refused(name, value, f"options without Spark are {', '.join(_NAMES)}; Session.embedded() follows all")

        def text(*names: str, default: str) -> str:
            return next((given[name][1] for name in names if name in given), default)

        def character(*names: str, default: str) -> str:
            value = text(*names, default=default)
            value = {"\\t": "\t", "\\\\": "\\"}.get(value, value)
            if len(value) != 1 or not value.isascii() or value in "\r\n\0":
                raise _refused(given[next(name for name in names if name in given)][0], value, "pass one ASCII character")
            return value

        def switch(name: str) -> bool:
            value = text(name, default="false")
            if value.lower() not in _SWITCHES:
                raise _refused(given[name][0], value, 'pass "true" or "false"')
            return _SWITCHES[value.lower()]

        encoding = text("encoding", "charset", default="UTF-8").lower()
        if encoding not in _UTF_8 + _LATIN:
            raise _refused("encoding", encoding, 'pass "UTF-8" or "ISO-8859-1"; Session.embedded() reads others')
        zone = text("timezone", default="UTC")
        if zone.upper() not in ("UTC", "Z", "ETC/UTC"):
            raise _refused("timeZone", zone, "leave it out, and convert times with to_utc_timestamp")
        return cls(
            switch("header") if "header" in given else None,
            character("sep", "delimiter", default=","),
            character("quote", default='"'),
            character("escape", default="\\"),
            text("nullvalue", default=""),
            text("emptyvalue", default=""),
            character("comment", default="#") if "comment" in given else _NONE,
            switch("ignoreleadingwhitespace"),
            switch("ignoretrailingwhitespace"),
            encoding in _LATIN,
        )

    @cached_property
    def doubled(self) -> bool:
        """Return whether a quote within quotes is written twice."""
        return self.quote == self.escape

    def plain(self, columns: int) -> str:
        """Return a pattern of lines with so many fields in which quotes stand around whole fields only."""
        q, s, e = (re.escape(char) for char in (self.quote, self.separator, self.escape))
        inside = f"(?:[^{q}]|{q}{q})*" if self.doubled else f"[^{q}{e}]*"
        field = f"(?:[^{q}{s}][^{q}{s}]*|{q}{inside}{q}|)"
        return f"^{field}(?:{s}{field}){{{columns - 1}}}$"


def _refused(name: str, value: str, hint: str) -> PlanError:
    what = f"the option {name!r} of CSV cannot be followed without Spark"
    return PlanError(what, got=shown(value), then="rows would be read in another way", hint=hint)


@attrs.frozen(eq=False)
class Records:
    """The values of some lines.

    Attributes
    ----------
    columns : list of pyarrow.Array
        The fields as text by column, null where they are null; rows in the order of their lines.
    lines : numpy.ndarray
        The line of each row, by its place.
    bad : numpy.ndarray
        The lines that have another number of fields.
    """

    columns: list[pa.Array]
    lines: npt.NDArray[np.int64]
    bad: npt.NDArray[np.int64]


def records(lines: pa.Array, columns: int, options: CsvOptions) -> Records:
    """Return the fields of some `lines` of text, none of them blank or a comment, that should have so many `columns`."""
    quoted = pc.match_substring(lines, options.quote).to_numpy(zero_copy_only=False)
    separators = pc.count_substring(lines, options.separator).to_numpy()
    blanks = options.leading or options.trailing
    if blanks or columns > _MOST_COLUMNS or not quoted.any():  # a quote may follow blanks
        plain = np.zeros(len(lines), np.bool_)
    else:
        plain = quoted & pc.match_substring_regex(lines, options.plain(columns)).to_numpy(zero_copy_only=False)
    simple = np.flatnonzero(~quoted & (separators == columns - 1))
    parts = [_split(lines.take(pa.array(simple)), columns, options)]
    by_arrow = np.flatnonzero(plain)
    if len(by_arrow):
        parts.append(_by_arrow(lines.take(pa.array(by_arrow)), columns, options))
    odd = np.flatnonzero(quoted & ~plain)
    fields = [fields_of(line, options) for line in lines.take(pa.array(odd)).to_pylist()]
    fits = np.array([split_line is not None and len(split_line) == columns for split_line in fields], np.bool_)
    good = [split_line for split_line in fields if split_line is not None and len(split_line) == columns]
    parts.append([pa.array([split_line[i] for split_line in good], pa.string()) for i in range(columns)])
    where = np.concatenate([simple, by_arrow, odd[fits]])
    order = np.argsort(where, kind="stable")
    joined = [pa.concat_arrays([part[i] for part in parts]).take(pa.array(order)) for i in range(columns)]
    bad = np.concatenate([np.flatnonzero(~quoted & (separators != columns - 1)), odd[~fits]])
    return Records([_nulls(column, options) for column in joined], where[order], np.sort(bad))


def _nulls(column: pa.Array, options: CsvOptions) -> pa.Array:
    """Fields, null where they are the text for it; an empty one without quotes is null already."""
    return pc.if_else(pc.equal(column, options.null), pa.scalar(None, pa.string()), column)


def _split(lines: pa.Array, columns: int, options: CsvOptions) -> list[pa.Array]:
    """Fields of lines without quotes."""
    flat = pc.split_pattern(lines, options.separator).flatten()
    if options.leading:
        flat = pc.utf8_ltrim(flat, characters=_BLANKS)
    if options.trailing:
        flat = pc.utf8_rtrim(flat, characters=_BLANKS)
    flat = pc.if_else(pc.equal(flat, ""), pa.scalar(None, pa.string()), flat)
    return [flat.take(pa.array(np.arange(i, len(flat), columns))) for i in range(columns)]


def _by_arrow(lines: pa.Array, columns: int, options: CsvOptions) -> list[pa.Array]:
    """Fields of lines in which quotes stand around whole fields."""
    names = [f"c{i}" for i in range(columns)]
    data = "\n".join(lines.to_pylist()).encode()
    table = pacsv.read_csv(
        pa.BufferReader(data),
        pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        pacsv.ParseOptions(
            delimiter=options.separator,
            quote_char=options.quote,
            double_quote=options.doubled,
            escape_char=False,
            newlines_in_values=False,
            ignore_empty_lines=False,
        ),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    texts = [pa.concat_arrays([*table.column(name).chunks, pa.array([], pa.string())]) for name in names]
    return [pc.if_else(pc.equal(text, ""), pa.scalar(options.empty), text) for text in texts]  # empty between quotes


def fields_of(line: str, options: CsvOptions) -> list[str | None] | None:
    """Return the fields of a line, read character by character; None where Spark would lose a separator.

    Examples
    --------
    >>> fields_of('"a"b,"c,d",', CsvOptions())
    ['"a"b', 'c,d', None]
    """
    fields: list[str | None] = []
    position = 0
    while True:
        read = _field(line, position, options)
        if read is None:
            return None
        value, position = read
        fields.append(value)
        if position >= len(line):
            return fields
        position += 1  # the separator
        if position == len(line):
            return [*fields, None]


def _field(line: str, position: int, options: CsvOptions) -> tuple[str | None, int] | None:
    """Return a field that begins at a place, and where it ends."""
    begin = position
    if options.leading:
        while begin < len(line) and line[begin] <= _BLANK and line[begin] != options.separator:
            begin += 1
    if line.startswith(options.quote, begin):
        return _quoted(line, begin + 1, options)
    end = line.find(options.separator, begin)
    end = len(line) if end < 0 else end
    text = line[begin:end]
    return (text.rstrip(_BLANKS) if options.trailing else text) or None, end


def _quoted(line: str, position: int, options: CsvOptions) -> tuple[str, int] | None:
    """Return a field from the character after its opening quote on, and where it ends."""
    quote, escape, separator = options.quote, options.escape, options.separator
    out: list[str] = []
    ended = False
    while position < len(line):
        char = line[position]
        if ended:  # a quote came before
            if char == separator:
                return _or_empty("".join(out), options), position
            rest = position
            while rest < len(line) and line[rest] <= _BLANK and line[rest] != separator:
                rest += 1
            if rest > position and (rest == len(line) or line[rest] == separator):
                return _or_empty("".join(out), options), rest  # blanks between the quote and the separator
            if rest == position and char == quote and not options.doubled:
                out.append(quote)
                position += 1
                continue
            if rest == position and char == escape:
                return None
            end = line.find(separator, max(rest, position + 1))
            end = len(line) if end < 0 else end
            text = quote + "".join(out) + quote + line[position:end]
            return text.rstrip(_BLANKS) if options.trailing else text, end
        following = line[position + 1 : position + 2]
        if char == escape and following and following in (quote, escape) and not (options.doubled and following != quote):
            out.append(following)
            position += 2
        elif char == quote:
            ended = True
            position += 1
        elif char == escape and not following:
            position += 1
        else:
            out.append(char)
            position += 1
    return _or_empty("".join(out), options), position


def _or_empty(text: str, options: CsvOptions) -> str:
    return text or options.empty


def header_of(line: str, options: CsvOptions) -> Sequence[str]:
    """Return the names in the first line of a file."""
    return [name or "" for name in fields_of(line, options) or ()]
