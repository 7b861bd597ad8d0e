"""The step that drops duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from krishiv_py.api.computed import keys_of, visible, with_computed
from krishiv_py.api.options import OptionMethods
from krishiv_py.plan.dedup import Duplicates, deduplication, passing
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.nodes import Project

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


@attrs.frozen(eq=False, repr=False)
class DedupMethods(OptionMethods):
    """A stage whose duplicates can be dropped."""

    def drop_duplicates(self, *columns: str | Expr, within: Duration, duplicates: Duplicates = "count") -> ResultStream:
        """Let the first row of each identity pass, and drop the rows that repeat it (SEMANTICS §8).

        A row passes in the micro-batch in which it arrives, with all its columns. It is a duplicate when a row with the same
        values in `columns` has passed whose event time is less than `within` away, before or after. Duplicates are counted
        as ``duplicates``. Null equals null.

        Parameters
        ----------
        *columns : str or Expr
            What makes two rows the same: columns, or expressions over them, which rows do not get as columns. By default the
            keys of the stream; without keys, all columns.
        within : int or timedelta or str
            How far apart in event time duplicates can be; ``int`` is milliseconds. A row is kept in state for so long, and
            for the lag and the allowed lateness.
        duplicates : {"count", "side_output"}
            Only count duplicates, or also hand them to the late handler with the reason ``duplicate``.

        Returns
        -------
        ResultStream
            The rows that pass, with their columns as they came. They can be run, or be windowed in another stage.

        Raises
        ------
        ColumnError
            For columns that do not exist, and for values that cannot be compared.
        DurationError
            For a zero, negative, float or boolean `within`, and unreadable text.
        PlanError
            For options that do not apply here: triggers, emit modes, panes.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> clicks = stream_of("id string, at bigint").watermark("at", "5 s").drop_duplicates("id", within="1 min")
        >>> driver = Driver(clicks)
        >>> rows = [{"id": "a", "at": 0}, {"id": "a", "at": 59_999}, {"id": "b", "at": 60_000}, {"id": "a", "at": 60_000}]
        >>> driver.send(rows).results.to_pylist()
        [{'id': 'a', 'at': 0}, {'id': 'b', 'at': 60000}, {'id': 'a', 'at': 60000}]
        >>> driver.counters["duplicates"]
        1
        """
        schema = self._row_schema()
        once = [c for i, c in enumerate(columns) if not isinstance(c, str) or c not in columns[:i]]
        names, computed = keys_of(once, visible(schema), "drop_duplicates")
        own = tuple(self._draft.input.input.computes) if isinstance(self._draft.input.input, Project) else ()
        hidden = (*own, *(name for name, _ in computed))
        identity = names or self._draft.keys or tuple(f.name for f in passing(schema))
        dedup = attrs.evolve(deduplication(within, duplicates, hidden), hides_time=self._draft.hides_time)
        mark = with_computed(self._draft.input, schema, computed)
        return self._results(attrs.evolve(self._draft, input=mark, keys=identity).doing(dedup))
