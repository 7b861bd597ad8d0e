"""Files of JSON lines, read by Arrow in the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import pyarrow as pa

from krishiv_py.spark.filereader import FileReader, SameValue, spelt
from krishiv_py.spark.jsonlines import JsonLines
from krishiv_py.spark.listing import partitions
from krishiv_py.spark.malformed import Malformed, shown_path
from krishiv_py.spark.scanned import Scanned


@attrs.frozen(eq=False)
class JsonReader(FileReader):
    """Batches of file names; `known` are all columns of the source, read or not."""

    known: tuple[str, ...] = ()

    kind: ClassVar[str] = "JSON"
    as_lines: ClassVar[bool] = True

    def scanned(self, found: Any, uri: str) -> Iterator[Scanned]:
        """The rows of an open file, block by block; columns that only its folders name are those of all rows."""
        by_folder = partitions(uri)
        folders = {f.name: spelt(f.name, list(by_folder)) for f in self.schema}
        lines = JsonLines(self.schema, self.known)
        for parsed in lines.read(found):
            if parsed.batch.num_rows:
                yield Scanned(self._with_folders(parsed.batch, folders, by_folder))
            if parsed.bad:
                yield self.put_aside([Malformed(shown_path(uri), b.line, b.text, b.problem) for b in parsed.bad])

    def _with_folders(
        self, batch: pa.RecordBatch, folders: dict[str, str | None], by_folder: dict[str, str | None]
    ) -> pa.RecordBatch:
        """Where no line of a block says anything of a column, its folder does."""
        if not any(folders.values()):
            return batch
        arrays = []
        for field, column in zip(self.schema, batch.columns, strict=True):
            folder = folders[field.name]
            same = folder is not None and column.null_count == batch.num_rows
            arrays.append(SameValue.by_folder(field, by_folder[str(folder)]).of(batch) if same else column)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
