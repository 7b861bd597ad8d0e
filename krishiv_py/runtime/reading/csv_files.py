"""Files of CSV, read without Spark by the rules of its reader (docs/sources.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.csv.records import CsvOptions, Records, header_of, records
from krishiv_py.connectors.csv.values import unreadable, values
from krishiv_py.connectors.json.lines import BLOCK_BYTES, blocks
from krishiv_py.connectors.malformed import Malformed
from krishiv_py.errors import PlanError, SourceError
from krishiv_py.plan.nodes import FileSource
from krishiv_py.runtime.reading.filereader import FileReader
from krishiv_py.runtime.reading.malformed import opened, shown_path
from krishiv_py.runtime.reading.scanned import Scanned
from krishiv_py.storage.files import store_at
from krishiv_py.types import type_text

_SOMETHING: Final = r"[^\x00-\x20]"
_REPLACED: Final = "\ufffd"
_NOT_UTF_8: Final = "bytes that are not UTF-8"


@attrs.frozen(eq=False)
class _Lines:
    """Lines of a block that are input: text, numbers from 1, and which had bytes that are not UTF-8."""

    text: pa.Array
    numbers: np.ndarray[Any, np.dtype[np.int64]]
    odd: dict[int, bytes]


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

    def scanned(self, found: Any, uri: str) -> Iterator[Scanned]:
        """The rows of an open file, block by block."""
        headed = not self.options.header
        for lines in input_lines(found, self.options):
            text, numbers = lines.text, lines.numbers
            if not headed and len(text):
                self._check_header(text[0].as_py(), uri)
                text, numbers, headed = text.slice(1), numbers[1:], True
            if len(text):
                yield from self._rows(attrs.evolve(lines, text=text, numbers=numbers), uri)

    def _rows(self, lines: _Lines, uri: str) -> Iterator[Scanned]:
        read = records(lines.text, len(self.known), self.options)
        at = {name: n for n, name in enumerate(self.known.names)}
        converted = [values(read.columns[at[field.name]], field.type) for field in self.schema]
        bad = np.zeros(len(read.lines), np.bool_)
        for _, none in converted:
            bad |= none
        odd = self._odd(lines, read, at)
        batch = pa.RecordBatch.from_arrays([column for column, _ in converted], schema=self.schema)
        wrong = bad | odd
        if wrong.any():
            batch = batch.filter(pa.array(~wrong))
        if batch.num_rows:
            yield Scanned(batch)
        problems = dict.fromkeys(read.bad.tolist(), self._record) | {
            int(line): _NOT_UTF_8 if is_odd else self._record
            for line, is_odd in zip(read.lines[wrong], (odd & ~bad)[wrong], strict=True)
        }
        if problems:
            yield self.put_aside([self._malformed(lines, at, problems[at], uri) for at in sorted(problems)])

    def _odd(self, lines: _Lines, read: Records, at: dict[str, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which rows have bytes that are not UTF-8 in a text that is read."""
        found = np.zeros(len(read.lines), np.bool_)
        if lines.odd:
            found = np.isin(lines.numbers[read.lines], list(lines.odd))
            texts = [read.columns[at[f.name]] for f in self.schema if pa.types.is_string(f.type)]
            replaced = np.zeros(len(read.lines), np.bool_)
            for column in texts:
                replaced |= pc.fill_null(pc.match_substring(column, _REPLACED), False).to_numpy(zero_copy_only=False)
            found &= replaced
        return found

    @property
    def _record(self) -> str:
        return f"no record of {', '.join(f'{field.name} {type_text(field.type)}' for field in self.known)}"

    def _malformed(self, lines: _Lines, at: int, problem: str, uri: str) -> Malformed:
        number = int(lines.numbers[at])
        raw = lines.odd.get(number)
        text = lines.text[at].as_py() if raw is None else raw.decode("utf-8", "backslashreplace")
        return Malformed(shown_path(uri), number, text, problem)

    def _check_header(self, line: str, uri: str) -> None:
        """See that the header names the columns, in whatever case.

        Raises
        ------
        SourceError
            When it names others.
        """
        found = header_of(line, self.options)
        if [name.lower() for name in found] != [name.lower() for name in self.known.names]:
            raise SourceError(
                f"{shown_path(uri)}: the header names other columns than the schema",
                got=f"header {', '.join(found)}; schema {', '.join(self.known.names)}"[:600],
                then="values would come under wrong names",
                hint="pass a schema with the columns of the header, in its order",
            )


def input_lines(stream: Any, options: CsvOptions) -> Iterator[_Lines]:
    """The lines of a file that are neither blank nor comments, block by block."""
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
            odd = {first + n: line for n, line in enumerate(block.split(b"\n")) if not _is_utf_8(line)}
        text = pc.split_pattern(pa.array([whole]), "\n").flatten()
        kept = pc.match_substring_regex(text, _SOMETHING)
        if options.comment:
            kept = pc.and_not(kept, pc.starts_with(text, options.comment))
        numbers = np.arange(first, first + len(text))[kept.to_numpy(zero_copy_only=False)]
        first += len(text)
        yield _Lines(text.filter(kept), numbers, odd)


def _is_utf_8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def header_columns(path: str, options: CsvOptions) -> list[str]:
    """Return what the first line of a file calls its columns: ``_c0``, ``_c1`` where it is not a header."""
    store, root = store_at(path)
    with opened(store, root, shown_path(path), as_lines=True) as found:
        for lines in input_lines(found, options):
            if len(lines.text):
                names = header_of(lines.text[0].as_py(), options)
                return list(names) if options.header else [f"_c{n}" for n in range(len(names))]
    return []
