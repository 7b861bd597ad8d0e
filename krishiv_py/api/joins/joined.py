"""Two streams that are joined, ready to run."""

from __future__ import annotations

import attrs

from krishiv_py.api.results.rows import RowStream


@attrs.frozen(eq=False, repr=False)
class JoinedStream(RowStream):
    """The results of a join: rows, not aggregates (SEMANTICS §9)."""
