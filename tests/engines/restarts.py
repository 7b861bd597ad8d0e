"""A plan over batches of rows: stopped and started once, bounded, and moved from engine to engine by savepoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py import MemorySink, Session

Batches: TypeAlias = "Sequence[list[dict[str, Any]]]"


@attrs.frozen
class Case:
    """A plan over a stream with this `schema`, and the `batches` that it takes."""

    schema: str
    plan: Callable[[Any], Any]
    batches: Batches

    def restarted(self, session: Session, folder: Path) -> pa.Table:
        """Return the results of a query that is stopped and started once."""
        stream, sender = session.memory_stream(self.schema)
        sink, plan = MemorySink(), self.plan(stream)
        query = plan.start(sink, checkpoint=folder / "checkpoint")
        for number, batch in enumerate(self.batches):
            sender.send(batch)
            query.process_all_available()
            if number == len(self.batches) // 2:
                query.stop()
                query = plan.start(sink, checkpoint=folder / "checkpoint")
        sender.close()
        query.process_all_available()
        query.stop()
        return _rows_of(sink, plan)

    def bounded(self, session: Session) -> pa.Table:
        """Return the results of a run over all rows."""
        stream, sender = session.memory_stream(self.schema)
        for batch in self.batches:
            sender.send(batch)
        result: pa.Table = self.plan(stream).collect()
        return result

    def moved(self, session: Session, folder: Path) -> pa.Table:
        """Return the results of a query that begins in process, goes on in a session, and ends in process."""
        third = len(self.batches) // 3
        with Session.in_process(workers=2) as here:
            first = self._part(here, self.batches[:third], folder / "first")
        second = self._part(session, self.batches[third : 2 * third], folder / "second", folder / "first saved")
        with Session.in_process() as here:
            last = self._part(here, self.batches[2 * third :], folder / "last", folder / "second saved", ends=True)
        return pa.concat_tables([first, second, last])

    def _part(
        self, session: Session, batches: Batches, folder: Path, savepoint: Path | None = None, *, ends: bool = False
    ) -> pa.Table:
        stream, sender = session.memory_stream(self.schema)
        sink, plan = MemorySink(), self.plan(stream)
        query = plan.start(sink, checkpoint=folder, savepoint=savepoint)
        for batch in batches:
            sender.send(batch)
            query.process_all_available()
        if ends:
            sender.close()
            query.process_all_available()
        else:
            query.savepoint(f"{folder} saved")
        query.stop()
        return _rows_of(sink, plan)


def _rows_of(sink: MemorySink, plan: Any) -> pa.Table:
    rows = sink.table()
    return plan.schema.empty_table() if rows is None else rows
