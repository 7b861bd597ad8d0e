"""Files of JSON lines, read by Arrow in the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from krishiv_py.connectors.json.lines import JsonLines
from krishiv_py.connectors.malformed import Malformed
from krishiv_py.runtime.reading.filereader import FileReader, by_folders
from krishiv_py.runtime.reading.malformed import shown_path
from krishiv_py.runtime.reading.scanned import Scanned


@attrs.frozen(eq=False)
class JsonReader(FileReader):
    """Batches of file names; `known` are all columns of the source, read or not."""

    known: tuple[str, ...] = ()

    kind: ClassVar[str] = "JSON"
    as_lines: ClassVar[bool] = True

    def scanned(self, found: Any, uri: str) -> Iterator[Scanned]:
        """The rows of an open file, block by block; of what a line does not say, its folders may have the value."""
        lines = JsonLines(self.schema, self.known)
        for parsed in lines.read(found):
            if parsed.batch.num_rows:
                yield Scanned(by_folders(parsed.batch, uri))
            if parsed.bad:
                yield self.put_aside([Malformed(shown_path(uri), b.line, b.text, b.problem) for b in parsed.bad])
