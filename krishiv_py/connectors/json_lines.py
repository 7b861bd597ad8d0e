"""Lines that are JSON, as rows: whole blocks by Arrow, and one by one the texts that are not as Arrow takes them.

Arrow stops at the first value that is wrong and does not say in which line. So a block is read in pieces, and of a piece that
it refuses, or in which it finds another number of rows than there are texts, one look by a pattern tells which texts are odd
(:mod:`~krishiv_py.connectors.json_shapes`). Those are read by Python, by the same rules, and the others by Arrow.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from krishiv_py.connectors.fit import FILE, fit
from krishiv_py.connectors.json_shapes import RowShape, shape
from krishiv_py.connectors.json_values import (
    LEVELS,
    TWICE,
    JsonObject,
    column,
    is_too_deep,
    names_and_values,
    places_of,
    values_of,
    written,
)
from krishiv_py.functions.computing.text import flags
from krishiv_py.functions.computing.values import Mask

BLOCK_BYTES: Final = 8 << 20
_FIRST_BYTES: Final = 1 << 17
_FIRST_TEXTS: Final = 1 << 10
_GROWTH: Final = 8
"""Pieces are short at first: a piece that Arrow refuses is read for nothing, and those that follow are looked at before."""
_FEW: Final = 200
"""So many texts Python reads in the time in which a pattern gets ready."""
_AT_A_TIME: Final = 8_192
"""The values of so many texts are in memory."""
_OBJECTS: Final = 256
"""So many objects are in memory: the cache of a processor holds them, and the search for garbage looks at each."""
_PART: Final = 2_048
"""So many rows are read again at a time where Arrow refuses rows that look like rows."""
_LONG_LINE: Final = 2 * LEVELS
"""A text that is closed may go too deep only if it is longer."""
_BOM: Final = b"\xef\xbb\xbf"
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"\t\t")
"""Line ends are blanks between values, and wrong within texts."""
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


@attrs.frozen(eq=False)
class JsonRows:
    """The rows of some texts.

    Attributes
    ----------
    batch : pyarrow.RecordBatch
        The rows, in the order of the texts.
    places : numpy.ndarray
        The text of each row, by its place.
    bad : list of (int, str)
        The texts that are not rows, by place, and why.
    """

    batch: pa.RecordBatch
    places: npt.NDArray[np.int64]
    bad: list[tuple[int, str]]


@attrs.frozen(eq=False)
class _NamesUse:
    """Holds what objects with some names are to the columns.

    Attributes
    ----------
    values_of : callable
        From the values of an object to those of the columns.
    twice : tuple of str
        The columns that are there twice.
    strange : str
        Why an object with such names is no row; empty if it may be one.
    """

    values_of: Callable[[tuple[Any, ...]], Sequence[Any]]
    twice: tuple[str, ...]
    strange: str


@attrs.define(eq=False)
class JsonLines:
    """Reads one file, or the texts of one source.

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
    _unit: str = attrs.field(default="us", init=False)
    _odd: bool = attrs.field(default=False, init=False)
    """True if the piece before had texts that are not as Arrow takes them."""
    _doubt: bool = attrs.field(default=False, init=False)
    """True if the piece before had texts that look like rows and may be none."""

    @classmethod
    def exact(cls, schema: pa.Schema, known: tuple[str, ...]) -> JsonLines:
        """For texts that come one by one: names are written as in the schema, and a list is not one."""
        lines = cls(schema, known, as_written=True)
        lines._spelling = {name: name for name in known}
        return lines

    def rows(self, texts: Sequence[bytes]) -> JsonRows:
        """Return the rows of texts that are one object each."""
        parts: list[JsonRows] = []
        begin, size = 0, _FIRST_TEXTS
        while begin < len(texts) or not parts:
            piece = texts[begin : begin + size]
            batch = None if self._odd else self._whole(piece)
            part = self._apart(texts[begin:]) if batch is None else JsonRows(batch, np.arange(len(piece)), [])
            if begin:
                part = JsonRows(part.batch, part.places + begin, [(i + begin, why) for i, why in part.bad])
            parts.append(part)
            begin, size = begin + (len(texts) if batch is None else size), size * _GROWTH
        if len(parts) == 1:
            return parts[0]
        batch = _one_batch([part.batch for part in parts])
        return JsonRows(batch, np.concatenate([part.places for part in parts]), [bad for part in parts for bad in part.bad])

    def read(self, stream: Any) -> Iterator[ParsedBlock]:
        """Yield the rows of a file, block by block."""
        for block in blocks(stream, BLOCK_BYTES):
            parsed = list(self._parts(block))
            yield ParsedBlock(_one_batch([part.batch for part in parsed]), [bad for part in parsed for bad in part.bad])

    def _parts(self, block: bytes) -> Iterator[ParsedBlock]:
        """Yield the lines of a block in pieces."""
        begin, size = 0, _FIRST_BYTES
        while begin < len(block):
            end = len(block)
            if end - begin > size and not self._odd:
                end = block.rfind(b"\n", begin, begin + size) + 1 or block.find(b"\n", begin) + 1 or end
            batch = None if self._odd else self._by_arrow_as_spelt(block[begin:end])
            if batch is None:
                yield self._lines_apart(block[begin:])
                return
            self._line += block.count(b"\n", begin, end)
            yield ParsedBlock(batch, [])
            begin, size = end, size * _GROWTH

    def _by_arrow_as_spelt(self, piece: bytes) -> pa.RecordBatch | None:
        if not self.as_written:
            self._spelling = self._spelt(piece)
        return self.by_arrow(piece)

    def _lines_apart(self, piece: bytes) -> ParsedBlock:
        lines = piece.splitlines()
        numbers = [i for i, line in enumerate(lines) if line.strip()]
        if not self.as_written:
            self._spelling = self._mostly_spelt(piece, len(numbers))
        rows = self._apart([lines[i] for i in numbers])
        bad = [
            BadLine(self._line + numbers[i], lines[numbers[i]].decode("utf-8", "backslashreplace"), why) for i, why in rows.bad
        ]
        self._line += len(lines)
        self._odd |= len(numbers) < len(lines)
        return ParsedBlock(rows.batch, bad)

    def _whole(self, texts: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return texts as Arrow reads them; None where one may be no row, or more than one.

        All of it works on the whole block, and lets go of Python's lock, so several threads may decode at the same time.
        """
        block = _as_lines(texts)
        return None if block is None else self.by_arrow(block)

    def _apart(self, texts: Sequence[bytes]) -> JsonRows:
        """Return the rows of texts some of which are odd: of those by Python, of the others by Arrow."""
        few, self._odd = len(texts) < _FEW, False
        likely, batch = (np.zeros(len(texts), np.bool_), _no_rows(self.schema)) if few else self._likely(texts)
        odd = np.flatnonzero(~likely)
        self._odd |= len(odd) > 0
        alone = self.one_by_one(list(itertools.compress(texts, ~likely)))
        places = odd[alone.places]
        bad = alone.bad
        if len(odd) < len(texts):
            bad = list(zip(odd[[i for i, _ in bad]].tolist(), [why for _, why in bad], strict=True))
        if not len(places):
            return JsonRows(batch, np.flatnonzero(likely), bad)
        if not batch.num_rows:
            return JsonRows(alone.batch, places, bad)
        places = np.concatenate([np.flatnonzero(likely), places])
        order = np.argsort(places, kind="stable")
        return JsonRows(_one_batch([batch, alone.batch]).take(pa.array(order)), places[order], bad)

    def _likely(self, texts: Sequence[bytes]) -> tuple[Mask, pa.RecordBatch]:
        """Return which texts look like rows, and these as Arrow reads them; none of them where it does not."""
        array = pa.array(texts, pa.binary()).view(pa.string())  # UTF-8 or not: the pattern sees it
        likely, pattern = np.zeros(len(texts), np.bool_), None
        for unit in self._units():
            if pattern is not None and 2 * np.count_nonzero(likely) >= len(texts):
                break
            other = self._shape(unit)
            if other is None or not (pattern is None or other.rows(array.take(_sample(len(texts)))).any()):
                continue
            fits = other.rows(array)
            if pattern is None or np.count_nonzero(fits) > np.count_nonzero(likely):
                likely, pattern, self._unit = fits, other, unit
        lines = self._one_line_each(texts, array)
        parsed = None if self._doubt else self._of_likely(lines, likely)
        if parsed is None and pattern is not None:
            doubtful = likely & pattern.doubtful(array)
            self._doubt = bool(doubtful.any())
            if 2 * np.count_nonzero(doubtful) <= np.count_nonzero(likely):
                likely = likely & ~doubtful
                parsed = self._of_likely(lines, likely)
            if parsed is None:  # or most may be rows nevertheless
                parsed = self._of_parts(lines, likely, doubtful)
        batch, empty = parsed or (_no_rows(self.schema), np.zeros(0, np.bool_))
        if empty.any():  # has it any other of the columns?
            self._odd = True
            doubt = np.flatnonzero(likely)[empty]
            doubt = doubt[~flags(pc.match_substring_regex(array.take(pa.array(doubt)), self._begins_known()))]
            kept = np.ones(len(texts), np.bool_)
            kept[doubt] = False
            batch = batch if kept.all() else batch.filter(pa.array(kept[likely]))
            likely = likely & kept
        return likely, batch

    def _one_line_each(self, texts: Sequence[bytes], array: pa.Array) -> Sequence[bytes]:
        """Return texts, which are an array too, without line ends in them."""
        _, offsets, buffer = array.buffers()
        data = np.frombuffer(buffer or b"", np.uint8)
        ends = np.flatnonzero(data <= ord("\r"))  # and other blanks, which are few
        ends = ends[(data[ends] == ord("\n")) | (data[ends] == ord("\r"))]
        if not len(ends):
            return texts
        self._odd = True
        lines = list(texts)
        for i in np.unique(np.searchsorted(np.frombuffer(offsets, np.int32), ends, side="right") - 1).tolist():
            lines[i] = lines[i].translate(_ONE_LINE)
        return lines

    def _of_parts(self, lines: Sequence[bytes], likely: Mask, doubtful: Mask) -> tuple[pa.RecordBatch, Mask]:
        """Return texts that look like rows as Arrow reads them, part by part; `likely` becomes false for those it refuses."""
        batches, empties = [_no_rows(self.schema)], [np.zeros(0, np.bool_)]
        for begin in range(0, len(lines), _PART):
            part = slice(begin, begin + _PART)
            parsed = self._of_likely(lines[part], likely[part])
            if parsed is None:
                likely[part] &= ~doubtful[part]
                parsed = self._of_likely(lines[part], likely[part])
            if parsed is None:
                likely[part] = False
            else:
                batches.append(parsed[0])
                empties.append(parsed[1])
        return _one_batch(batches), np.concatenate(empties)

    def _of_likely(self, lines: Sequence[bytes], likely: Mask) -> tuple[pa.RecordBatch, Mask] | None:
        if not likely.any():
            return _no_rows(self.schema), np.zeros(0, np.bool_)
        return self._parsed(b"\n".join(itertools.compress(lines, likely)), shallow=True)

    def _units(self) -> tuple[str, ...]:
        """Return the units in which Arrow may read times, first the one that was right last."""
        if not any(pa.types.is_timestamp(f.type) for f in self.schema):
            return ("us",)
        return ("us", "ns") if self._unit == "us" else ("ns", "us")

    def _shape(self, unit: str) -> RowShape | None:
        if self._spelling is None or not self._fast():
            return None
        return shape(self.schema, tuple(self._spelling.items()), not self.as_written, unit)

    def _fast(self) -> bool:
        return all(_fast_type(f.type) is not None for f in self.schema)

    def _begins_known(self) -> str:
        names = "|".join(re.escape(name) for name in self.known if name.isprintable() and name.isascii() and '"' not in name)
        return rf'\A[ \t\r\n]*\{{[ \t\r\n]*"(?:{names})"[ \t\r\n]*:'

    def one_by_one(self, texts: Sequence[bytes]) -> JsonRows:
        """Return the rows of texts, each of which is read alone, whatever it is."""
        parts = [self._read(texts[begin : begin + _AT_A_TIME]) for begin in range(0, len(texts) or 1, _AT_A_TIME)]
        if len(parts) == 1:
            return parts[0]
        begins = range(0, len(texts), _AT_A_TIME)
        return JsonRows(
            _one_batch([part.batch for part in parts]),
            np.concatenate([part.places + begin for part, begin in zip(parts, begins, strict=True)]),
            [(i + begin, why) for part, begin in zip(parts, begins, strict=True) for i, why in part.bad],
        )

    def _read(self, texts: Sequence[bytes]) -> JsonRows:
        """Return the rows of as many texts as may be in memory as values."""
        columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        twice: dict[str, dict[int, str]] = {name: {} for name in self.schema.names}
        reasons, bad, places = dict[int, str](), dict[int, str](), list[int]()
        use_of = functools.cache(self._use)  # most objects have the names of one before
        for begin in range(0, len(texts), _OBJECTS):
            rows, their_places = self._objects(texts[begin : begin + _OBJECTS], begin, bad)
            self._take_apart(rows, columns, use_of, twice, reasons)
            places += their_places
        arrays = []
        for (name, values), field in zip(columns.items(), self.schema, strict=True):
            reasons = twice[name] | reasons if twice[name] else reasons
            arrays.append(column(values, field, self.as_written, reasons))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        last_first = sorted(reasons, reverse=True)  # of several objects of a text the first says why
        bad.update(zip(map(places.__getitem__, last_first), map(reasons.__getitem__, last_first), strict=True))
        good = np.ones(len(texts), np.bool_)
        good[list(bad)] = False
        every = np.array(places, np.int64)
        kept = good[every]
        if not kept.all():
            batch, every = batch.filter(pa.array(kept)), every[kept]
        return JsonRows(batch, every, [(i, bad[i]) for i in sorted(bad)])

    def _objects(self, texts: Sequence[bytes], begin: int, bad: dict[int, str]) -> tuple[list[JsonObject], Sequence[int]]:
        """Return the objects of texts that are from a place on, and the places; `bad` gets why others are none."""
        values, problems = values_of(texts)
        bad.update(zip([begin + i for i in problems], problems.values(), strict=True))
        if len(problems) == len(values):
            return [], ()
        if set(map(type, values)) <= {tuple}:
            return values, range(begin, begin + len(values))
        rows: list[JsonObject] = []
        places: list[int] = []
        for i, value in enumerate(values, begin):
            if type(value) is tuple:
                rows.append(value)
                places.append(i)
            elif value is None and i in bad:
                continue
            elif not self.as_written and type(value) is list and set(map(type, value)) == {tuple}:
                rows += value
                places += [i] * len(value)
            else:
                bad[i] = "no JSON object"
        return rows, places

    def _take_apart(
        self,
        rows: Sequence[JsonObject],
        columns: dict[str, list[Any]],
        use_of: Callable[[tuple[str, ...]], _NamesUse],
        twice: dict[str, dict[int, str]],
        reasons: dict[int, str],
    ) -> None:
        """Add the values of objects to `columns`; `twice` and `reasons` get why some are no rows, by their places there."""
        begin, alike = len(columns[self.schema.names[0]]), _alike(rows)
        taken: Iterable[Sequence[Any] | None]
        if alike is None:
            found = list(map(names_and_values, rows))
            used = [use_of(names) for names, _ in found]
            taken = zip(*[use.values_of(values) for use, (_, values) in zip(used, found, strict=True)], strict=True)
        else:
            used = [use_of(alike[0])] * len(rows)
            taken = used[0].values_of(alike[1])
        for field, of_column, of_rows in zip(self.schema, columns.values(), taken, strict=bool(rows)):
            values = [None] * len(rows) if of_rows is None else of_rows
            of_column += written(values) if pa.types.is_string(field.type) else values
        for use in {use for use in used if use.twice or use.strange}:
            places = [i for i, other in enumerate(used, begin) if other is use]
            for name in use.twice:
                twice[name].update(dict.fromkeys(places, f"column {name!r} appears twice"))
            if use.strange:
                reasons.update(dict.fromkeys(places, use.strange))

    def _use(self, names: tuple[str, ...]) -> _NamesUse:
        """Return what objects with such names are."""
        places = places_of(names, self.schema.names, self.as_written)
        spelt, known = set(names), set(self.known)
        if not self.as_written:
            spelt, known = set(map(str.lower, names)), set(map(str.lower, self.known))
        strange = ""
        if known.isdisjoint(spelt):
            has = ", ".join(list(dict.fromkeys(names))[:20]) or "nothing"
            strange = f"none of the columns {', '.join(self.known[:20])}; it has: {has}"
        twice = tuple(name for name, place in zip(self.schema.names, places, strict=True) if place == TWICE)
        return _NamesUse(_getter(places), twice, strange)

    def _spelt(self, block: bytes) -> dict[str, str] | None:
        """Return how a block spells each column; None if it may be in more than one way, which only reading by line shows."""
        names = self._names()
        letters = "".join(names).lower()
        if self._may_be_escaped(letters, block):
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

    @staticmethod
    def _may_be_escaped(letters: str, block: bytes) -> bool:
        """Return whether some of the `letters` of names may be escaped in a block."""
        if b"\\" not in block:
            return False
        letters = letters.lower()
        return bool(_ESCAPED_OTHERWISE.search(letters)) or any(
            chr(int(code, 16)).lower() in letters for code in set(_ESCAPED.findall(block))
        )

    def _mostly_spelt(self, block: bytes, rows: int) -> dict[str, str]:
        """Return how most rows of a block spell each column."""
        text, spelling = block.decode("utf-8", "replace"), {}
        for name in self._names():
            spelling[name] = name
            if 2 * text.count(f'"{name}"') < rows:
                named = re.findall(rf'"({re.escape(name)})"[ \t\r\n]*:', text[:_FIRST_BYTES], re.IGNORECASE)
                spellings = Counter(n for n in named if n.lower() == name.lower() and n.isascii())
                spelling[name] = max(spellings, key=spellings.__getitem__, default=name)
        return spelling

    def by_arrow(self, block: bytes) -> pa.RecordBatch | None:
        """Return the block as Arrow reads it; None if a line may be no row."""
        parsed = self._parsed(block, shallow=False)
        return None if parsed is None or parsed[1].any() else parsed[0]

    def _parsed(self, block: bytes, *, shallow: bool) -> tuple[pa.RecordBatch, Mask] | None:
        """Return the block as Arrow reads it, and which lines have none of the wanted columns; None if it refuses one.

        Arrow goes down as deep as a line does: `shallow` says that all look like rows, so no line goes deep, and times are in
        the unit that was right last.
        """
        fast = [t for t in (_fast_type(f.type) for f in self.schema) if t is not None]
        if self._spelling is None or len(fast) < len(self.schema):
            return None
        if (not shallow and _may_end_arrow(block)) or not _plain(block):
            return None
        for unit in (self._unit,) if shallow else self._units():
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
                parsed = self._batch(table, block)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # more than six digits of a second, or a line that is wrong
            self._unit = unit
            return parsed
        return None

    def _names(self) -> set[str]:
        return {*self.known, *(name for field in self.schema for name in _inside(field.type))}

    def _as_spelt(self, type_: pa.DataType) -> pa.DataType:
        """Return a type with the fields of its structs as the block spells them."""
        if pa.types.is_struct(type_):
            spelling = self._spelling or {}
            return pa.struct([pa.field(spelling.get(f.name, f.name), self._as_spelt(f.type)) for f in type_])
        return pa.list_(self._as_spelt(type_.value_type)) if pa.types.is_list(type_) else type_

    def _batch(self, table: pa.Table, block: bytes) -> tuple[pa.RecordBatch, Mask] | None:
        lines = np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (not block.endswith(b"\n"))
        if table.num_rows != lines:
            return None
        table.validate(full=True)  # Arrow's reader lets bytes through that are not UTF-8
        arrays = []
        empty = None
        for values, field in zip(table.combine_chunks().columns, self.schema, strict=True):
            array = values.chunk(0) if values.num_chunks else pa.nulls(0, values.type)
            if _has_infinite(array):
                return None
            empty = array.is_null() if empty is None else pc.and_(empty, array.is_null())
            if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
                array = pc.floor_temporal(array, unit="microsecond")
            nested = pa.types.is_nested(field.type)
            arrays.append(fit(array, field.type, FILE, (field.name,)) if nested else array.cast(field.type))
        none = np.zeros(table.num_rows, np.bool_) if empty is None else flags(empty)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), none


def _has_infinite(array: pa.Array) -> bool:
    """Return whether Arrow has read a number as infinite: it does so, in place of refusing it, where one has many digits."""
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_struct(array.type):
        return any(map(_has_infinite, array.flatten()))
    return pa.types.is_list(array.type) and _has_infinite(array.flatten())


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


def _as_lines(texts: Sequence[bytes]) -> bytes | None:
    """Return texts as one block; None where one may be no object, or more than one."""
    block = b"\n".join(texts)
    data = np.frombuffer(block, np.uint8)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(block))
    begins = np.append(0, ends[:-1] + 1)
    if len(ends) != len(texts) or (ends <= begins).any():
        return None
    objects = (data[begins] == ord("{")).all() and (data[ends - 1] == ord("}")).all()
    return block if objects else None


def _one_batch(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _sample(number: int) -> pa.Array:
    """Return some places among so many."""
    return pa.array(np.arange(0, number, 1 + number // _FEW))


def _plain(block: bytes) -> bool:
    """Return whether Arrow finds the lines of a block and their names: to it a lone CR is a blank, any bytes a name."""
    if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
        return False
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


def _may_end_arrow(block: bytes) -> bool:
    """Return whether Arrow's reader may end the process, by a first line that is null, or take a line that is too deep."""
    if not block[:_LONG_LINE].lstrip().startswith(b"{"):
        return True
    start = 0
    while len(block) - start > _LONG_LINE:
        end = block.rfind(b"\n", start, start + _LONG_LINE)
        if end < 0:
            end = block.find(b"\n", start + _LONG_LINE)
            end = len(block) if end < 0 else end
            if is_too_deep(block[start:end]):
                return True
        start = end + 1
    return False


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


def _alike(rows: Sequence[JsonObject]) -> tuple[tuple[str, ...], tuple[list[Any], ...]] | None:
    """Return the names that all objects have, and for each name the values of all; None where they have not the same names."""
    width = len(rows[0]) if rows else 0
    if not width or set(map(len, rows)) != {width}:
        return None
    flat = list(itertools.chain.from_iterable(itertools.chain.from_iterable(rows)))
    names = flat[: 2 * width : 2]
    if flat[::2] != names * len(rows):
        return None
    return tuple(names), tuple(flat[place :: 2 * width] for place in range(1, 2 * width, 2))


def _getter(places: Sequence[int]) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    """Return a function from the values of an object to those at some places, None where there is no place."""
    if len(places) == 1:
        place = places[0]
        return lambda values: (None if place < 0 else values[place],)
    getter = operator.itemgetter(*[max(place, -1) for place in places])
    return getter if min(places) >= 0 else lambda values: getter((*values, None))
