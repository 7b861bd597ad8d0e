"""Tables on the driver go to their sink: what any engine does with a :class:`~krishiv_py.connectors.TableSink`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import FolderSink, OutputBatch, OutputName, Sink, TableSink
from krishiv_py.connectors.transactional import turn
from krishiv_py.errors import RAISED, CheckpointError, KrishivError, OperatorError, cause_of, failure_text


@attrs.frozen
class OutputOf:
    """One output of a running query.

    Attributes
    ----------
    query_id : str
        Identifies the query, also after a restart.
    query : str
        Its name.
    output : {"results", "late_rows"}
        Which output it is.
    schema : pyarrow.Schema
        Its columns.
    """

    query_id: str
    query: str
    output: OutputName
    schema: pa.Schema

    def batch(self, batch_id: int, *, is_replay: bool) -> OutputBatch:
        """One micro-batch of it."""
        return OutputBatch(self.query_id, self.query, self.output, batch_id, is_replay, self.schema)


@contextmanager
def blamed(sink: Sink, batch_id: int) -> Iterator[None]:
    """Let what fails in the body name the sink and the micro-batch.

    Raises
    ------
    OperatorError
        For whatever the sink raises. Leaving the process is a failure too: it is not the main thread.
    CheckpointError
        As the sink raises it.
    """
    try:
        yield
    except CheckpointError:
        raise
    except OperatorError as problem:  # with a hint of its own
        raise OperatorError(f"the sink {sink.title} failed in batch {batch_id}: {problem}") from problem
    except BaseException as problem:  # noqa: BLE001  # user code: whatever it raises is reported with the batch
        what, hint = f"the sink {sink.title} failed", f"fix {sink.title}"
        if isinstance(sink, FolderSink) and isinstance(problem, OSError):
            hint = "see to room and rights in its folder, then start the query again: the batch is repeated"
        raise OperatorError(what, got=f"batch {batch_id}", then=failure_text(problem), hint=hint) from cause_of(problem)


def check_sink(sink: Sink, output: OutputName, schema: pa.Schema) -> None:
    """Let a sink refuse what it cannot take, before a query begins.

    Raises
    ------
    KrishivError
        As the sink raises it.
    OperatorError
        For anything else that it raises.
    """
    try:
        sink.check(output, schema)
    except KrishivError:
        raise
    except RAISED as problem:
        what = f"the sink {sink.title} cannot be checked"
        raise OperatorError(what, got=failure_text(problem), hint=f"fix {sink.title}.check") from problem


@attrs.define(eq=False)
class TablePublisher:
    """Gives the batches of one output to a sink, in a run of a query: a batch that is there already is not given again."""

    sink: TableSink
    output: OutputOf
    _begun: bool = False
    _last: int | None = None

    def publish(self, batch_id: int, tables: Sequence[pa.Table], *, is_replay: bool) -> None:
        """Give the rows of a batch to the sink.

        Raises
        ------
        OperatorError
            When the sink fails.
        CheckpointError
            When the sink holds this batch although the checkpoint says that it never ran.
        """
        with turn(self.sink):
            self._publish(self.output.batch(batch_id, is_replay=is_replay), tables)

    def _publish(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        batch_id = batch.batch_id
        with blamed(self.sink, batch_id):
            if not self._begun:
                self._last = self.sink.last_committed(batch)
                self._begun = True
        if self._last is None or batch_id > self._last:
            with blamed(self.sink, batch_id):
                self.sink.write_tables(batch, tables)
        elif not batch.is_replay:
            raise CheckpointError(
                f"{self.sink.title} holds batch {self._last} of this query already",
                got=f"batch {batch_id}, which never ran from this checkpoint",
                then="the checkpoint was restored from an older copy, and its rows would be lost or doubled",
                hint="restore the sink to the same time as the checkpoint, or start with both",
            )
