"""Files of JSON lines, written by Spark."""

from __future__ import annotations

from typing import Any

import attrs

from krishiv_py.connectors.sink import SparkFileSink
from krishiv_py.connectors.sinks.folder import a_folder
from krishiv_py.redaction import shown_text


@attrs.frozen
class JsonSink(SparkFileSink):
    """Files of JSON lines in a folder; exactly once like :class:`ParquetSink`."""

    path: str = attrs.field(converter=a_folder, repr=shown_text)

    def write_files(self, frame: Any, folder: str) -> None:
        """Write the rows of the DataFrame `frame` into `folder`."""
        frame.write.mode("overwrite").json(folder)
