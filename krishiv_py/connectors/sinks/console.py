"""Rows as lines of text on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OutputBatch, TableSink
from krishiv_py.plan.checks import a_number

_LONGEST: Final = 200


@attrs.frozen
class ConsoleSink(TableSink):
    """Prints every non-empty micro-batch; a repeated batch is printed again.

    A row is one line: characters that a terminal does not show are escaped, and values of more than 200 characters are cut.

    Attributes
    ----------
    max_rows : int
        How many rows of a micro-batch are printed, 20 by default.
    """

    max_rows: int = attrs.field(default=20)

    @max_rows.validator
    def _shows_rows(self, _attribute: object, value: object) -> None:
        a_number(value, "max_rows", 1, "pass how many rows of a micro-batch are printed, from 1")

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Print the first rows of `tables` under the name of the query and the number of the `batch`."""
        rows = pa.concat_tables(tables) if tables else batch.schema.empty_table()
        if not rows.num_rows:
            return
        late = ": late" if batch.output == "late_rows" else ""
        more = " (more rows not shown)" if rows.num_rows > self.max_rows else ""
        _print(f"-- {batch.query}{late}, batch {batch.batch_id}{more}")
        names, columns = [_shown(n) for n in rows.column_names], [_texts(c) for c in rows.slice(0, self.max_rows).columns]
        for row in zip(*columns, strict=True):
            _print("    " + ", ".join(f"{name}={text}" for name, text in zip(names, row, strict=True)))


def _texts(values: pa.ChunkedArray) -> list[str]:
    try:
        return [_shown(str(value)) for value in values.to_pylist()]
    except (OverflowError, ValueError):  # a time outside of the years 1 to 9999, which Python has not
        return [_of_arrow(values.slice(at, 1)) for at in range(len(values))]


def _of_arrow(value: pa.ChunkedArray) -> str:
    """A value as Arrow shows it; it says of some times only that they are out of range, and by which number."""
    text = " ".join(value.combine_chunks().to_string().split())
    return _shown(text.removeprefix("[ ").removesuffix(" ]"))


def _shown(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print(line: str) -> None:
    """Print a line also where standard output has not all of its characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))
