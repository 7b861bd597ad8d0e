"""Readers of files: CSV, JSON lines and Parquet as rows in the tasks, through Arrow.

A reader gives :class:`ScannedRows`. Input that cannot be read fails the query and says where, or it is put aside and counted.
Paths are checked where they are given. Parquet files give the columns that are needed, each held to the schema; CSV follows the
rules of Spark's reader (docs/sources.md).
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from krishiv_py.connectors.csv import CsvOptions, Records, header_of, records, unreadable, values
from krishiv_py.connectors.fit import (
    FILE,
    FileColumn,
    MisfitError,
    Rule,
    SameValue,
    cut_to_microseconds,
    explained,
    file_columns,
    lacking,
    open_parquet,
    spelt,
)
from krishiv_py.connectors.hive import partitions
from krishiv_py.connectors.json_lines import BLOCK_BYTES, JsonLines, blocks
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import Malformed
from krishiv_py.errors import PlanError, SourceError
from krishiv_py.plan.nodes import FileSource, MemorySource, SourceNode
from krishiv_py.plan.running import Control
from krishiv_py.storage.files import PATTERN, arrow_reads, passed_over, store_at
from krishiv_py.storage.local import of_this_machine
from krishiv_py.storage.sends.log import CONTROL, control_of, sent_at
from krishiv_py.storage.sends.segments import open_sent
from krishiv_py.storage.store import Store, Stores
from krishiv_py.types import type_text


@attrs.frozen(eq=False)
class ScannedRows:
    """Rows of a source, a control, or input that was set aside.

    `now_us` is when rows were sent, and `partition` names where they are from, where that is known.
    """

    batch: pa.RecordBatch | None
    control: Control | None = None
    now_us: int | None = None
    malformed: tuple[Malformed, ...] = ()
    partition: str = ""

    @property
    def only_time(self) -> bool:
        """Return whether it is a send without rows, which says no more than when it was."""
        return self.batch is None and self.control is None and not self.malformed


UNKNOWN_COLUMNS: Final = 'pass schema="user string, at timestamp"'
"""The hint where files do not say which columns there are."""
UNREAD_FILE: Final = 'repair or remove it, or pass schema=... and on_malformed="side_output", which puts it aside'
"""The hint where that is asked of a file that cannot be read."""
UNREADABLE: Final = (pa.ArrowException, OSError, UnicodeDecodeError, EOFError)


@attrs.frozen
class Rules:
    """Holds what a source is to do with input that does not fit.

    Attributes
    ----------
    aside : bool
        Put malformed inset aside instead of failing.
    missing_null : bool
        Take a column or a field that a file does not have as null instead of refusing the file.
    cut : bool
        Cut times in nanoseconds to microseconds instead of refusing the file.
    """

    aside: bool = False
    missing_null: bool = True
    cut: bool = False


def shown_path(path: str) -> str:
    """Return a path as people write it."""
    return path.removeprefix("file://").removeprefix("file:") if path.startswith("file:") else path


@contextmanager
def opened(store: Store, path: str, shown: str, *, as_lines: bool = False) -> Iterator[Any]:
    """A file, decompressed by its suffix if it is read in lines.

    Raises
    ------
    SourceError
        When it is not there any more or may not be read, whatever the rules are: that says nothing about its rows.
    """
    try:
        stream = store.arrow.open_input_stream(path, compression=_compression(path)) if as_lines else store.open(path)
    except FileNotFoundError as problem:
        raise gone(shown) from problem
    except OSError as problem:
        hint = "see that every worker may read it"
        raise SourceError("a file cannot be opened", got=f"{shown}: {problem}", hint=hint) from problem
    with stream:
        yield stream


def gone(shown: str) -> SourceError:
    """Return the error for a file that was listed and is not there when it is to be read."""
    hint = "put it back; remove files only after the batch that reads them is done"
    return SourceError("a file went before it was read", got=shown, hint=hint, transient=True)


def _compression(path: str) -> str | None:
    ends = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
    return next((kind for end, kind in ends.items() if path.lower().endswith(end)), None)


def _line_ends(begin: bytes, compression: str | None) -> int:
    """Return how many lines end in the beginning of a file."""
    if compression is None:
        return begin.count(b"\n")
    ends = 0
    with contextlib.suppress(OSError), pa.CompressedInputStream(pa.BufferReader(begin), compression) as lines:
        while part := lines.read(_BEGINNING):  # up to where the beginning ends in a block
            ends += part.count(b"\n")
    return ends


def readable(store: Store, path: str) -> bool:
    """Return whether the bytes of a file can be had: then what went wrong is what is in them."""
    try:
        with store.arrow.open_input_stream(path, compression=None) as stream:
            while stream.read(1 << 22):
                pass
    except OSError:
        return False
    return True


@attrs.frozen
class PathLocation:
    """A path that was looked at.

    Attributes
    ----------
    path : str
        Absolute where the files are on this machine.
    literal : bool
        Whether it names a folder or file as it is, though it may look like a pattern.
    """

    path: str
    literal: bool

    @property
    def for_spark(self) -> str:
        """The path as Spark takes it, for which some characters have a meaning."""
        return literal_path(self.path) if self.literal else self.path


def located(path: str, *, streaming: bool, here: bool) -> PathLocation:
    """Look at a path where it is given; only one that is `here`, on this machine, is looked for.

    Raises
    ------
    SourceError
        When there is nothing, or a file where a folder is needed.
    PlanError
        For a scheme with one slash.
    """
    if not here:
        return PathLocation(path, literal=False)
    own = os.path.abspath(of_this_machine(path).removeprefix("file://").removeprefix("file:"))
    if not os.path.exists(own):
        if not PATTERN.search(own):
            hint = "correct the path, or make the folder before"
            raise SourceError("there is no such file or folder", got=path, hint=hint, transient=True)
        if not streaming and not any(glob.iglob(own)) and "{" not in own:
            raise SourceError("no file matches the pattern", got=path, hint="correct the pattern")
        return PathLocation(own, literal=False)
    if streaming and os.path.isfile(own):
        then = "no other file would ever come"
        hint = "pass its folder or a pattern, or read it with streaming=False"
        raise SourceError("a stream of files needs a folder", got=f"the file {path}", then=then, hint=hint)
    return PathLocation(own, literal=True)


def literal_path(path: str) -> str:
    """Return a path as Spark takes it, which takes some characters for a pattern."""
    return PATTERN.sub(r"\\\g<0>", path)


def with_partitions(schema: pa.Schema, paths: list[str]) -> pa.Schema:
    """Return a schema read from files, and the columns that their folders add."""
    values: dict[str, list[str | None]] = {}
    for path in paths:
        for name, value in partitions(path).items():
            values.setdefault(name, []).append(value)
    present = {name.lower() for name in schema.names}
    for name, texts in values.items():
        if name.lower() not in present:
            schema = schema.append(pa.field(name, _type_of(texts)))
    return schema


def _type_of(texts: list[str | None]) -> pa.DataType:
    """Return the narrowest type that holds all texts, as Spark has it for partition folders."""
    column = pa.array(texts, pa.string())
    for type_ in (pa.int32(), pa.int64(), pa.date32()):
        try:
            column.cast(type_)
        except pa.ArrowInvalid:
            continue
        return type_
    return pa.string()


_BEGINNING: Final = 1 << 16
"""So many bytes tell how long the lines of a file are."""


@attrs.frozen(eq=False)
class FileReader:
    """Batches of file names; Arrow reads the files."""

    schema: pa.Schema
    rules: Rules = attrs.field(factory=Rules)
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False, kw_only=True)

    kind: ClassVar[str]
    as_lines: ClassVar[bool] = False

    def __call__(self, batch: pa.RecordBatch) -> Iterator[ScannedRows]:
        for path in batch.column(0).to_pylist():
            if not passed_over(path):
                yield from self.read_file(path)

    def read_file(self, uri: str) -> Iterator[ScannedRows]:
        """Yield the rows of a file, and what of it is set aside."""
        store, path = store_at(uri)
        shown, rows = shown_path(uri), 0
        with opened(store, path, shown, as_lines=self.as_lines) as file:
            try:
                for scanned in self.scanned(file, uri):
                    yield scanned
                    rows += 0 if scanned.batch is None else scanned.batch.num_rows
            except (*UNREADABLE, MisfitError) as problem:
                if not isinstance(problem, MisfitError) and not readable(store, path):
                    hint = "see that every worker can read it"
                    raise SourceError("a file cannot be read", got=f"{shown}: {problem}", hint=hint) from problem
                what = str(problem) if isinstance(problem, MisfitError) else f"not a whole {self.kind} file ({problem})"
                yield self.put_aside([Malformed(shown, None, None, what + (f", after {rows} rows" if rows else ""))])

    def rows_per_byte(self, uri: str, size: int) -> float:
        """Return about how many rows a byte of a file has on disk, by a look at its beginning or footer; 0 where it has none.

        A file that cannot be read has none: whoever reads it says why.
        """
        store, path = store_at(uri)
        try:
            with opened(store, path, shown_path(uri)) as file:
                return self._density(file, path, size)
        except (*UNREADABLE, SourceError):
            return 0.0

    def _density(self, file: Any, path: str, size: int) -> float:
        """Return the rows a byte of an open file."""
        begin = file.read(_BEGINNING)
        return _line_ends(begin, _compression(path)) / max(len(begin), 1)

    def put_aside(self, malformed: list[Malformed]) -> ScannedRows:
        """Return malformed input as a part that is put aside.

        Raises
        ------
        SourceError
            When nothing may be.
        """
        if not self.rules.aside:
            raise malformed[0].error()
        return ScannedRows(None, malformed=tuple(malformed))

    def scanned(self, file: Any, uri: str) -> Iterator[ScannedRows]:
        """Yield the rows of an open file."""
        raise NotImplementedError


def by_folders(batch: pa.RecordBatch, uri: str, rows: pa.Array | None = None) -> pa.RecordBatch:
    """Rows of a file, in which a folder of its path says what they do not: row by row, wherever a batch ends.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        The rows, in the columns of the schema.
    uri : str
        The path of the file.
    rows : pyarrow.Array, optional
        Which rows are of this file; all of them by default.

    Raises
    ------
    MisfitError
        When a folder names no value of the column's type.
    """
    named = partitions(uri)
    for i, field in enumerate(batch.schema):
        folder = spelt(field.name, list(named)) if named and batch.column(i).null_count else None
        if folder is not None:
            column, value = batch.column(i), SameValue.by_folder(field, named[folder]).value
            unsaid = column.is_null() if rows is None else pc.and_(column.is_null(), rows)
            batch = batch.set_column(i, field, pc.if_else(unsaid, value, column))
    return batch


@attrs.frozen(eq=False)
class JsonReader(FileReader):
    """Batches of file names; `known` are all columns of the source, read or not."""

    known: tuple[str, ...] = ()

    kind: ClassVar[str] = "JSON"
    as_lines: ClassVar[bool] = True

    def scanned(self, file: Any, uri: str) -> Iterator[ScannedRows]:
        """Yield the rows of an open file, block by block; of what a line does not say, its folders may have the value."""
        lines = JsonLines(self.schema, self.known)
        for parsed in lines.read(file):
            if parsed.batch.num_rows:
                yield ScannedRows(by_folders(parsed.batch, uri))
            if parsed.bad:
                yield self.put_aside([Malformed(shown_path(uri), b.line, b.text, b.problem) for b in parsed.bad])


_READ_ROWS: Final = 1 << 18
"""The number of rows that are read at once: of a damaged file those are lost that are read with the damage."""


@attrs.frozen(eq=False)
class ParquetReader(FileReader):
    """Batches of file names; Arrow reads the files. `sent` for those of a sender, whose checksums are looked at."""

    sent: bool = False

    kind: ClassVar[str] = "parquet"

    def __call__(self, batch: pa.RecordBatch) -> Iterator[ScannedRows]:
        if not self.sent:
            yield from super().__call__(batch)
            return
        for uri in batch.column(0).to_pylist():
            yield from self._rows(open_sent(*store_at(uri)), uri)

    def scanned(self, file: Any, uri: str) -> Iterator[ScannedRows]:
        """Yield the rows of an open file."""
        return self._rows(open_parquet(file), uri)

    def _density(self, file: Any, path: str, size: int) -> float:
        return int(open_parquet(file).metadata.num_rows) / max(size, 1)

    def _rows(self, parquet: pq.ParquetFile, uri: str) -> Iterator[ScannedRows]:
        names = parquet.schema_arrow.names
        control = control_of(parquet.read()) if names and names[0] == CONTROL else None
        if control is not None:
            yield ScannedRows(None, control, control.now_us)
            return
        count, groups = parquet.metadata.num_rows, parquet.metadata.num_row_groups
        if sum(parquet.metadata.row_group(n).num_rows for n in range(groups)) != count:
            raise pa.ArrowInvalid(f"its row groups do not make up the {count} rows it is said to have")
        if not count:
            if self.sent:
                yield ScannedRows(None, None, sent_at(parquet.schema_arrow))
            return
        now_us = sent_at(parquet.schema_arrow)
        stored = file_columns(self.schema, parquet, self._rule())
        fields = [stored.get(f.name) or self._field(f, parquet, uri) for f in self.schema]
        wanted = [f.name for f in fields if isinstance(f, FileColumn)]
        for part in parquet.iter_batches(_READ_ROWS, columns=wanted, use_threads=False):
            if not self.sent:
                for column in part.columns:
                    _look_at_texts(column)
            try:
                arrays = [f.of(part) for f in fields]
            except MisfitError as problem:
                raise self._refused(problem) from problem
            yield ScannedRows(pa.RecordBatch.from_arrays(arrays, schema=self.schema), None, now_us)

    def _field(self, field: pa.Field, parquet: pq.ParquetFile, uri: str) -> SameValue:
        """Return the values of a column that the file does not have."""
        by_folder = partitions(uri)
        folder = spelt(field.name, list(by_folder))
        if folder is not None:
            return SameValue.by_folder(field, by_folder[folder])
        if self.rules.missing_null:
            return SameValue(pa.scalar(None, field.type))
        raise self._refused(lacking(parquet.schema_arrow.names, field.name))

    def _rule(self) -> Rule:
        """Return the rule for other names and types, of columns and of fields inside them."""
        leaf = cut_to_microseconds if self.rules.cut else FILE.leaf
        return attrs.evolve(FILE, missing="null" if self.rules.missing_null else "fail", leaf=leaf)

    def _refused(self, problem: MisfitError) -> MisfitError:
        """Return the error with the types, or with the option that would take the file."""
        way = '; missing_columns="null" would take it as null' if problem.lacks else ""
        return MisfitError(explained(problem) + way, "", problem.hint)


def _look_at_texts(column: pa.Array) -> None:
    """Arrow's reader lets bytes through that are not UTF-8. ASCII, the most common, is seen at a glance."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        data = column.buffers()[2]
        if data is None or np.frombuffer(data, np.uint8).max(initial=0) < 128:
            return
    elif not (pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type)):
        return
    column.validate(full=True)


_SOMETHING: Final = r"[^\x00-\x20]"
_REPLACED: Final = "\ufffd"
_NOT_UTF_8: Final = "bytes that are not UTF-8"


@attrs.frozen(eq=False)
class _Lines:
    """Lines of a block that are input: text, numbers from 1, and which had bytes that are not UTF-8."""

    text: pa.Array
    numbers: np.ndarray[Any, np.dtype[np.int64]]
    odd: dict[int, bytes]


HEADER: Final = '; if it names the columns, read the file with header="true"'
"""The end of the text for a first line of CSV that cannot be read, without `header`."""
_NAMES: Final = 'the names of the columns; read the file with header="true", or with header="false" if they are a row'


@attrs.frozen(eq=False)
class CsvReader(FileReader):
    """Batches of file names; `known` are all columns of the source, read or not."""

    options: CsvOptions = attrs.field(factory=CsvOptions)
    known: pa.Schema = attrs.field(factory=lambda: pa.schema([]))

    kind: ClassVar[str] = "CSV"
    as_lines: ClassVar[bool] = True

    @classmethod
    def of(cls, source: FileSource, schema: pa.Schema, rules: Any) -> CsvReader:
        """Return what reads the columns in `schema` of a source.

        Raises
        ------
        PlanError
            For options that only Spark follows, and types that CSV has no form for.
        """
        options, odd = CsvOptions.of(source.options), unreadable(source.schema)
        if odd:
            what, hint = "CSV has no form for columns of these types", "read them as string, and convert them"
            raise PlanError(what, got=", ".join(odd), hint=hint)
        return cls(schema, rules, options, source.schema)

    def scanned(self, file: Any, uri: str) -> Iterator[ScannedRows]:
        """Yield the rows of an open file, block by block."""
        begun = False
        for lines in input_lines(file, self.options):
            text, numbers = lines.text, lines.numbers
            if not begun and len(text):
                begun, first = True, text[0].as_py()
                names = self.options.header is None and self._is_text and self._names_columns(first)
                if self.options.header:
                    self._check_header(first, uri)
                elif names:
                    yield self.put_aside([Malformed(shown_path(uri), int(numbers[0]), first, _NAMES)])
                if self.options.header or names:
                    text, numbers = text.slice(1), numbers[1:]
            if len(text):
                yield from self._rows(attrs.evolve(lines, text=text, numbers=numbers), uri)

    def _rows(self, lines: _Lines, uri: str) -> Iterator[ScannedRows]:
        read = records(lines.text, len(self.known), self.options)
        index_of = {name: n for n, name in enumerate(self.known.names)}
        converted = [values(read.columns[index_of[field.name]], field.type) for field in self.schema]
        bad = np.zeros(len(read.lines), np.bool_)
        for _, none in converted:
            bad |= none
        odd = self._odd(lines, read, index_of)
        batch = pa.RecordBatch.from_arrays([column for column, _ in converted], schema=self.schema)
        wrong = bad | odd
        if wrong.any():
            batch = batch.filter(pa.array(~wrong))
        if batch.num_rows:
            yield ScannedRows(batch)
        if len(read.bad) or wrong.any():
            record = self._record
            problems = dict.fromkeys(read.bad.tolist(), record) | {
                line: _NOT_UTF_8 if is_odd else record
                for line, is_odd in zip(read.lines[wrong].tolist(), (odd & ~bad)[wrong].tolist(), strict=True)
            }
            yield self.put_aside([self._malformed(lines, index_of, problems[index_of], uri) for index_of in sorted(problems)])

    def _odd(self, lines: _Lines, read: Records, index_of: dict[str, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows have bytes that are not UTF-8 in a text that is read."""
        odd = np.zeros(len(read.lines), np.bool_)
        if lines.odd:
            odd = np.isin(lines.numbers[read.lines], list(lines.odd))
            texts = [read.columns[index_of[f.name]] for f in self.schema if pa.types.is_string(f.type)]
            replaced = np.zeros(len(read.lines), np.bool_)
            for column in texts:
                replaced |= pc.fill_null(pc.match_substring(column, _REPLACED), False).to_numpy(zero_copy_only=False)
            odd &= replaced
        return odd

    @property
    def _record(self) -> str:
        return f"no record of {', '.join(f'{field.name} {type_text(field.type)}' for field in self.known)}"

    def _malformed(self, lines: _Lines, line: int, problem: str, uri: str) -> Malformed:
        number = int(lines.numbers[line])
        if number == 1 and problem == self._record and not self.options.header:
            problem += HEADER
        raw = lines.odd.get(number)
        text = lines.text[line].as_py() if raw is None else raw.decode("utf-8", "backslashreplace")
        return Malformed(shown_path(uri), number, text, problem)

    @property
    def _is_text(self) -> bool:
        """Return whether a line of names can be read as a row."""
        return all(pa.types.is_string(field.type) for field in self.known)

    def _names_columns(self, line: str) -> bool:
        """Return whether a line names the columns, in whatever case."""
        return [name.lower() for name in header_of(line, self.options)] == [name.lower() for name in self.known.names]

    def _check_header(self, line: str, uri: str) -> None:
        """See that the header names the columns, in whatever case.

        Raises
        ------
        SourceError
            When it names others.
        """
        if not self._names_columns(line):
            header = header_of(line, self.options)
            raise SourceError(
                f"{shown_path(uri)}: the header names other columns than the schema",
                got=f"header {', '.join(header)}; schema {', '.join(self.known.names)}"[:600],
                then="values would come under wrong names",
                hint="pass a schema with the columns of the header, in its order",
            )


def input_lines(stream: Any, options: CsvOptions) -> Iterator[_Lines]:
    """Yield the lines of a file that are neither blank nor comments, block by block."""
    first = 1
    for raw in blocks(stream, BLOCK_BYTES):
        block = raw.decode("latin-1").encode() if options.latin else raw
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        block = block.removesuffix(b"\n")
        odd: dict[int, bytes] = {}
        try:
            whole = block.decode()
        except UnicodeDecodeError:
            whole = block.decode("utf-8", "replace")
            odd = {first + n: line for n, line in enumerate(block.split(b"\n")) if not is_utf_8(line)}
        text = pc.split_pattern(pa.array([whole]), "\n").flatten()
        kept = pc.match_substring_regex(text, _SOMETHING)
        if options.comment:
            kept = pc.and_not(kept, pc.starts_with(text, options.comment))
        numbers = np.arange(first, first + len(text))[kept.to_numpy(zero_copy_only=False)]
        first += len(text)
        yield _Lines(text.filter(kept), numbers, odd)


def is_utf_8(line: bytes) -> bool:
    """Return whether bytes are text in UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def header_columns(path: str, options: CsvOptions) -> list[str]:
    """Return what the first line of a file calls its columns: ``_c0``, ``_c1`` where it is not a header."""
    store, root = store_at(path)
    with opened(store, root, shown_path(path), as_lines=True) as file:
        for lines in input_lines(file, options):
            if len(lines.text):
                names = header_of(lines.text[0].as_py(), options)
                return list(names) if options.header else [f"_c{n}" for n in range(len(names))]
    return []


def arrow_scanned(source: SourceNode) -> bool:
    """Return whether Arrow reads the rows of a source in the tasks, so that only names or ranges travel through the JVM."""
    return isinstance(source, (MemorySource, RangeSource)) or (
        isinstance(source, FileSource)
        and source.format in ("parquet", "json")
        and not source.options
        and arrow_reads(source.path)
    )


def planned_here(source: SourceNode) -> bool:
    """Return whether the library plans the files of a source, whoever reads them."""
    return isinstance(source, FileSource) and arrow_reads(source.path)


def file_reader(source: FileSource, schema: pa.Schema) -> FileReader:
    """Return what reads the files of a source in the tasks."""
    rules = Rules(source.on_malformed == "side_output", source.missing_columns == "null", source.nanoseconds == "cut")
    if source.format == "csv":  # of a session without Spark
        return CsvReader.of(source, schema, rules)
    if source.format == "json":
        return JsonReader(schema, rules, tuple(source.schema.names))
    return ParquetReader(schema, rules)
