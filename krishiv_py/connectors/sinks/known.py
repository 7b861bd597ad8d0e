"""The sinks of the program itself, and which objects a query takes as a sink.

Rows go into its memory, as lines to its standard output, or to a function of DataFrames. A query takes only sinks it knows, so
that no row vanishes; late rows go to one of them (SEMANTICS §4.3).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeAlias, runtime_checkable

import attrs
import pyarrow as pa

from krishiv_py.arrays.capsules import ArrowRows
from krishiv_py.connectors.sink import (
    Delivery,
    FileSink,
    FolderSink,
    FrameSink,
    OnRepeat,
    OutputBatch,
    Sink,
    SparkFileSink,
    TableSink,
)
from krishiv_py.connectors.tables import changes
from krishiv_py.connectors.tables.keys import OP, is_log
from krishiv_py.errors import PlanError, shown
from krishiv_py.missing import Answering
from krishiv_py.plan.checks import a_function, a_number, call_plainly, one_of, plain_methods
from krishiv_py.plan.options.late import LateEventHandler, LateRows, LateWanted, OnError, SparedLateEventHandler, a_late_handler


@attrs.frozen(eq=False)
class MemorySink(TableSink, ArrowRows, Answering):
    """Arrow tables in the driver's memory: :meth:`table` gives all rows so far, :meth:`content` what they come to.

    Attributes
    ----------
    tables : dict
        The tables of each micro-batch, by its number.

    Examples
    --------
    >>> from krishiv_py import MemorySink, Session, count
    >>> sink = MemorySink()
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("at bigint")
    ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(sink)
    ...     _ = sender.send([{"at": 1}, {"at": 12}])
    ...     query.process_all_available()
    >>> sink.table().to_pylist()
    [{'window_start': 0, 'window_end': 10, 'count': 1}]
    """

    _kind: ClassVar = "memory sink"
    tables: dict[int, list[pa.Table]] = attrs.field(factory=dict, repr=False)
    on_repeat: ClassVar[OnRepeat] = "replace"
    exclusive: ClassVar[bool] = True

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Take (or replace) the rows `tables` of one `batch`."""
        self.put(batch.batch_id, list(tables))

    def put(self, batch_id: int, tables: list[pa.Table]) -> None:
        """Take (or replace) the rows of one micro-batch.

        Parameters
        ----------
        batch_id : int
            Number of the micro-batch, from 0.
        tables : list of pyarrow.Table
            Its rows; an empty list removes what an earlier attempt put.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from krishiv_py import MemorySink
        >>> sink = MemorySink()
        >>> sink.put(0, [pa.table({"count": [1]})])
        >>> sink.put(0, [pa.table({"count": [2]})])  # batch 0 once more: it takes the place of the first
        >>> sink.table().to_pylist()
        [{'count': 2}]
        """
        a_number(batch_id, "batch_id", 0, "pass the number of the micro-batch", most=(1 << 63) - 1)
        if not isinstance(tables, list) or not all(isinstance(t, pa.Table) for t in tables):
            raise PlanError("a memory sink takes a list of Arrow tables", got=shown(tables), hint="pass for instance [table]")
        if tables:
            self.tables[batch_id] = tables
        else:
            self.tables.pop(batch_id, None)

    def table(self) -> pa.Table | None:
        """Return all rows in the order of their micro-batches; None if there are none yet.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from krishiv_py import MemorySink
        >>> sink = MemorySink()
        >>> sink.table() is None
        True
        >>> sink.put(0, [pa.table({"count": [1]})])
        >>> sink.table().num_rows
        1
        """
        parts = [t for batch in sorted(self.tables) for t in self.tables[batch]]
        return pa.concat_tables(parts) if parts else None

    def content(self) -> pa.Table | None:
        """Return the rows that are left when all changes are applied in order; None if there are no rows yet (SEMANTICS §16.1).

        Of rows without a column ``op`` all are left.

        Raises
        ------
        OperatorError
            For a row whose ``op`` is no change.

        Examples
        --------
        >>> from krishiv_py import MemorySink, sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> sink = MemorySink()
        >>> driver = Driver(stream_of("user string, n bigint").key_by("user").agg(total=sum("n")), sink=sink)
        >>> for n in (5, 2):
        ...     _ = driver.send([{"user": "ann", "n": n}])
        >>> sink.table()["op"].to_pylist(), sink.content().to_pylist()
        (['+I', '-U', '+U'], [{'user': 'ann', 'total': 7}])
        """
        rows = self.table()
        if rows is None or not is_log(rows.schema):
            return rows
        changes.check_marks(rows[OP].combine_chunks())
        return changes.content_of(rows)

    def _arrow(self) -> pa.Table:
        rows = self.table()
        if rows is None:
            hint = "pass query.results(), which has the columns without rows, too"
            raise PlanError("the memory sink has no rows yet, so its columns are not known", got="no rows", hint=hint)
        return rows


_LONGEST: Final = 200


@attrs.frozen
class ConsoleSink(TableSink):
    """Prints every non-empty micro-batch; a repeated batch is printed again.

    A row is one line: characters that a terminal does not show are escaped, and values of more than 200 characters are cut.

    Attributes
    ----------
    max_rows : int
        How many rows of a micro-batch are printed, 20 by default.

    Examples
    --------
    >>> from krishiv_py import ConsoleSink, Session, count
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("at bigint")
    ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(ConsoleSink(), name="counts")
    ...     _ = sender.send([{"at": 1}, {"at": 12}])
    ...     query.process_all_available()
    -- counts, batch 0
        window_start=0, window_end=10, count=1
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
    except (OverflowError, ValueError):  # a time outside of the years 1 to 9999, which Python does not have
        return [_of_arrow(values.slice(i, 1)) for i in range(len(values))]


def _of_arrow(value: pa.ChunkedArray) -> str:
    """Return a value as Arrow shows it; it says of some times only that they are out of range, and by which number."""
    text = " ".join(value.combine_chunks().to_string().split())
    return _shown(text.removeprefix("[ ").removesuffix(" ]"))


def _shown(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print(line: str) -> None:
    """Print a line also where standard output lacks some of its characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))


BatchConsumer: TypeAlias = Callable[[Any, int], None]


@attrs.frozen(eq=False)
class ForeachBatchSink(FrameSink):
    """Calls ``function(dataframe, batch_id)`` for every micro-batch, with a Spark DataFrame of results.

    Attributes
    ----------
    function : callable
        What is called with the rows and the number of the micro-batch.

    Examples
    --------
    >>> from krishiv_py import ForeachBatchSink
    >>> def show(frame, batch_id):
    ...     frame.show()
    >>> ForeachBatchSink(show).title
    'show'
    """

    function: BatchConsumer = attrs.field()

    @function.validator
    def _can_be_called(self, _attribute: object, value: object) -> None:
        a_function(value, "a batch is taken by a function", "pass a function of a DataFrame and a batch number")

    @property
    def title(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def write_frame(self, batch: OutputBatch, frame: Any) -> None:
        """Call the function with the rows `frame` and the number of the `batch`."""
        call_plainly(self.function, frame, batch.batch_id)


_INTERFACES: Final = (FileSink, TableSink, FrameSink, SparkFileSink)
_WRITTEN: Final = "ParquetSink, JsonSink, MemorySink, ConsoleSink or ForeachBatchSink(function)"
_DELIVERED: Final[dict[Delivery, str]] = {
    "task_files": "files that tasks write",
    "tables": "tables on the driver",
    "frame": "a DataFrame on the cluster",
}
_REPEATED: Final[dict[OnRepeat, str]] = {
    "replace": "a repeated batch is replaced",
    "skip": "a committed batch is skipped",
    "at_least_once": "a repeated batch is given again",
}
_OWN: Final = "TransactionalSink, TableSink, FileSink or FrameSink of krishiv_py.connectors"


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose rows can be read back in this process."""

    def table(self) -> pa.Table | None:
        """Return all rows so far; None if there are none yet."""


def known_sink(value: object, what: str) -> Sink:
    """`value`, which must implement an interface of this room: rows for anything else would be lost.

    Raises
    ------
    PlanError
        With the interfaces there are; `what` are the rows it is for.
    """
    if isinstance(value, _INTERFACES):
        plain_methods(value, type(value))
        if isinstance(value, FolderSink):
            _check_files(value)
        return value
    hint = f"use {_WRITTEN}; for a sink of your own subclass {_OWN}"
    if isinstance(value, type) and issubclass(value, Sink):
        hint = f"pass an object: {value.__name__}(...)"
    raise PlanError(f"{what} cannot go to this sink", got=shown(value), hint=hint)


def as_sink(value: Sink | BatchConsumer, what: str) -> Sink:
    """Return a sink, or a function as a sink; `what` are the rows it is for.

    Raises
    ------
    PlanError
        For anything else.
    """
    if isinstance(value, (Sink, type)) or not callable(value):
        return known_sink(value, what)
    return ForeachBatchSink(value)


def described(sink: Sink) -> str:
    """Return what a sink states, for people."""
    return f"{sink.title} ({_DELIVERED[sink.delivery]}, {_REPEATED[sink.on_repeat]})"


def _check_files(sink: FolderSink) -> None:
    path, suffix = getattr(sink, "path", None), getattr(sink, "suffix", None)
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise PlanError(f"{sink.title} has no folder", got=shown(path), hint="give it an attribute `path` with the folder")
    if isinstance(sink, FileSink) and not (isinstance(suffix, str) and suffix.startswith(".") and "/" not in suffix):
        hint = 'give the class an attribute such as suffix = ".csv"'
        raise PlanError(f"{sink.title} has no suffix for its files", got=shown(suffix), hint=hint)


@attrs.frozen(eq=False)
class SideOutputLateEventHandler:
    """Writes whole late rows to a separate sink, exactly once together with the results.

    Attributes
    ----------
    sink : Sink
        Where late rows go.

    Examples
    --------
    >>> from krishiv_py import MemorySink, SideOutputLateEventHandler, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> late = SideOutputLateEventHandler(MemorySink())
    >>> counts = stream_of("at bigint").watermark("at", 0).with_late_event_handler(late).tumbling_window("10 s").agg(count())
    >>> driver = Driver(counts)
    >>> _ = driver.send([{"at": 12_000}])
    >>> _ = driver.send([{"at": 1_000}])
    >>> late.sink.table().to_pylist(), late.wants
    ([{'at': 1000, 'reason': 'late', 'watermark': 12000, 'lateness': 11000}], 'rows')
    """

    sink: Sink = attrs.field()

    @sink.validator
    def _is_known(self, _attribute: object, value: object) -> None:
        known_sink(value, "late rows")

    @property
    def wants(self) -> LateWanted:
        """Whole rows."""
        return "rows"

    def handle(self, late: LateRows) -> None:
        """Nothing: the runner writes the rows of `late` to :attr:`sink`, so that both outputs are published together."""


def given_handler(handler: object, on_error: OnError) -> LateEventHandler:
    """`handler`, which must be one; with ``"side_output"`` the query goes on when it raises.

    Raises
    ------
    PlanError
        For other values, and for a side output, whose sink is written with the results: it cannot be left out.
    """
    one_of(on_error, "on_error", ("fail", "side_output"))
    given = a_late_handler(handler)
    if on_error == "fail":
        return given
    if side_output(given) is not None:
        then = "late rows and results are written together, or not at all"
        hint = "leave on_error out"
        raise PlanError("a side output has no other output for its rows", got='on_error="side_output"', then=then, hint=hint)
    return SparedLateEventHandler(given)


def side_output(handler: LateEventHandler) -> Sink | None:
    """Return the sink late rows go to; None if the handler takes them itself."""
    return handler.sink if isinstance(handler, SideOutputLateEventHandler) else None
