"""Results that hand their rows on to other libraries as they are, by Arrow's PyCapsule interface."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa


class ArrowRows:
    """Base of what holds a table of rows: Polars, DuckDB, pandas and pyarrow take it as they take a table."""

    __slots__ = ()

    @abstractmethod
    def _arrow(self) -> pa.Table:
        """Return the rows."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as a stream of Arrow."""
        return self._arrow().__arrow_c_stream__(requested_schema)
