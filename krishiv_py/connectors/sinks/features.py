"""The feature log: results of a feature pipeline, each with when it was published (SEMANTICS §17.3)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.fit import MisfitError, explained, open_parquet
from krishiv_py.connectors.lookup_table import in_types_of_streams
from krishiv_py.connectors.sink import FileSink, OutputBatch, OutputName, Sink, TransactionalSink
from krishiv_py.connectors.sinks.files import a_folder, folder_of, write_parquet
from krishiv_py.connectors.tables.delta import place as delta_place
from krishiv_py.connectors.tables.delta.sink import DeltaSink
from krishiv_py.connectors.tables.iceberg import place as iceberg_place
from krishiv_py.connectors.tables.iceberg.sink import IcebergSink
from krishiv_py.connectors.tables.keys import OP, columns, is_log
from krishiv_py.errors import RAISED, ColumnError, PlanError, SourceError, failure_text, shown
from krishiv_py.failures.redaction import shown_text
from krishiv_py.plan.checks import PathLike, a_text, known_column
from krishiv_py.plan.schema import check_key_type, time_kind
from krishiv_py.storage.datasets import Dataset
from krishiv_py.storage.files import store_at

PUBLISHED: Final = "published_at"
"""The column with the clock on record of the micro-batch that published a row."""
BATCH: Final = "batch"
"""The column with the number of that micro-batch."""
OF_LOG: Final = pa.schema([(PUBLISHED, pa.timestamp("us", "UTC")), (BATCH, pa.int64())])
"""The columns that a log adds."""
_PIECE_ROWS: Final = 1 << 18


def _a_key(names: object) -> tuple[str, ...]:
    return columns(names, "key")


class FeatureSink(Sink):
    """Base of the sinks of features: what a row is, and what it gets when it is published."""

    __slots__ = ()
    keys: tuple[str, ...]
    at: str

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Refuse rows of an `output` that are no features: those of a `schema` without key or event time, change logs."""
        if output != "results":
            hint = "give late rows a sink of their own: SideOutputLateEventHandler(MemorySink())"
            raise PlanError("a feature log takes results", got="late rows", hint=hint)
        for name in self.keys:
            check_key_type(known_column(name, schema.names, "FeatureLog(key)"), schema.field(name).type)
        time_kind(schema, known_column(self.at, schema.names, "FeatureLog(at)"))
        if is_log(schema):
            then = "a reader would take what was withdrawn for a value"
            hint = 'write .emit("final") or .emit("updates"), or drop the column'
            raise PlanError("a feature log has values, and no changes", got=f"a column {OP!r}", then=then, hint=hint)
        for name in OF_LOG.names:
            if name in schema.names:
                hint = f'name it otherwise before: .rename({name}="{name}_of_row")'
                raise PlanError(f"a feature log has a column {name!r} of its own", got="results with one", hint=hint)

    def in_batch(self, table: pa.Table, batch_id: int, clock_us: Callable[[], int]) -> pa.Table:
        """Return rows with the clock and the number of their micro-batch."""
        now, number = pa.scalar(clock_us(), pa.int64()), pa.scalar(batch_id, pa.int64())
        published = pa.repeat(now, table.num_rows).cast(OF_LOG.field(PUBLISHED).type)
        return table.append_column(PUBLISHED, published).append_column(BATCH, pa.repeat(number, table.num_rows))

    @abstractmethod
    def read(self) -> pa.Table:
        """Return all rows, of each query micro-batch by micro-batch."""

    @abstractmethod
    def _pieces(self) -> Iterator[pa.Table]:
        """Yield all rows, a piece at a time, each with all columns; at least one."""

    def _whole(self, rows: pa.Table) -> pa.Table:
        """Return rows that were read, which have all columns of a log.

        Raises
        ------
        ColumnError
            For a column that they lack.
        """
        missing = [name for name in (*self.keys, self.at, *OF_LOG.names) if name not in rows.column_names]
        if missing:
            hint = "give key and at as the query that writes it does"
            raise ColumnError("a feature log lacks a column", got=missing[0], hint=hint)
        return rows


def _has_key(_sink: object, _attribute: object, value: tuple[str, ...]) -> None:
    if not value:
        raise PlanError("a feature log has a key", got="no column", hint='write FeatureLog(path, key="card", at="at")')


def _is_column(_sink: object, _attribute: object, value: str) -> None:
    a_text(value, "at", 'pass the name of the event-time column: at="at"')


@attrs.frozen(init=False)
class FeatureLog(FeatureSink, FileSink):
    """Parquet files with the results of a feature pipeline, and when each was published (docs/features.md).

    It is a sink, exactly once like :class:`~krishiv_py.ParquetSink`, and what :func:`~krishiv_py.features.training_set` reads.
    A row has the columns of the result, ``published_at`` (the clock on record of its micro-batch) and ``batch``, the number of
    that. A micro-batch that is repeated after a crash has the same number and the same clock (SEMANTICS §17.3).

    Attributes
    ----------
    path : str or os.PathLike
        The folder.
    keys : tuple of str
        The columns of the key, given as `key`: a name, or several.
    at : str
        The column with the event time of a row.

    Raises
    ------
    PlanError
        At the start of the query, for results that are change logs, for late rows, and where a column has the name of one of
        the log's own.
    ColumnError
        For a key or time that results do not have.

    Examples
    --------
    >>> from krishiv_py import Session, sum
    >>> from krishiv_py.features import FeatureLog
    >>> with Session.in_process() as session:
    ...     log = FeatureLog(session.temporary_folder(), key="card", at="at")
    ...     payments, sender = session.memory_stream("card string, at bigint, amount bigint")
    ...     timed = payments.watermark("at", "5 s").key_by("card")
    ...     spent = timed.lookback_window("1 h", emit="arrival", with_row=True).agg(sum("amount").alias("spent"))
    ...     query = spent.start(log)
    ...     _ = sender.send([{"card": "a", "at": 1_000, "amount": 5}])
    ...     query.process_all_available()
    ...     log.read().select(["card", "at", "spent", "batch"]).to_pylist()
    [{'card': 'a', 'at': 1000, 'spent': 5, 'batch': 0}]
    """

    suffix: ClassVar[str] = ".parquet"
    in_threads: ClassVar[bool] = True
    path: str = attrs.field(converter=a_folder, repr=shown_text)
    keys: tuple[str, ...] = attrs.field(converter=_a_key, validator=_has_key)
    at: str = attrs.field(validator=_is_column)

    def __init__(self, path: PathLike, *, key: str | Sequence[str], at: str) -> None:
        self.__attrs_init__(path, key, at)  # attrs makes it; the `key` of a sink means another thing

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write the rows of `table` to the open file `stream`."""
        write_parquet(table, stream)

    def read(self) -> pa.Table:
        """Return all rows, of each query micro-batch by micro-batch; a column that a file lacks is null there.

        Raises
        ------
        SourceError
            Where the folder holds no log, or files that do not go together.

        Examples
        --------
        >>> import tempfile
        >>> from krishiv_py.features import FeatureLog
        >>> from krishiv_py.testing import Driver, stream_of
        >>> log = FeatureLog(tempfile.mkdtemp(), key="card", at="at")
        >>> driver = Driver(stream_of("card string, at bigint, spent bigint"), sink=log)
        >>> _ = driver.send([{"card": "a", "at": 1_000, "spent": 5}])
        >>> log.read().select(["card", "spent", "batch"]).to_pylist()
        [{'card': 'a', 'spent': 5, 'batch': 0}]
        """
        return pa.concat_tables(self._pieces())

    def _pieces(self) -> Iterator[pa.Table]:
        store, root = store_at(folder_of(self) or "")
        there = [file.path for file in store.entries(root) if file.is_file and file.base_name.endswith(self.suffix)]
        if not there:
            hint = "give the folder that a query writes to: .start(FeatureLog(path, ...))"
            raise SourceError("there is no feature log", got=shown(self.path), then="no file is in the folder", hint=hint)
        try:
            schemas = [_schema(store.open(path)) for path in there]
            every = self._whole(pa.unify_schemas(schemas, promote_options="default").empty_table())
            yield every
            for path in sorted(there):
                for piece in _tables(store.open(path)):
                    yield pa.concat_tables([every, piece], promote_options="default")
        except (OSError, MisfitError, pa.ArrowException) as problem:
            then = explained(problem) if isinstance(problem, MisfitError) else failure_text(problem)
            hint = "begin a new folder where a column has another type now"
            raise SourceError("a feature log cannot be read", got=shown(self.path), then=then, hint=hint) from problem


def _table(value: object) -> DeltaSink | IcebergSink:
    if not isinstance(value, (DeltaSink, IcebergSink)):
        hint = 'write FeatureTable(DeltaSink(path), key="card", at="at"), or FeatureLog(path, key="card", at="at") for Parquet'
        raise PlanError("a feature table is a Delta or an Iceberg table", got=shown(value), hint=hint)
    if value.key:
        hint = f"leave the key of {value.title} out"
        raise PlanError(
            "a feature table keeps every row", got=f"key={list(value.key)}", then="rows would be replaced", hint=hint
        )
    return value


@attrs.frozen(init=False)
class FeatureTable(FeatureSink, TransactionalSink):
    """A feature log in a Delta or an Iceberg table: a micro-batch is one commit, exactly once (docs/features.md).

    Rows are those of a :class:`FeatureLog`, and it is read in the same places.

    Attributes
    ----------
    table : DeltaSink or IcebergSink
        The table and how it is written. It has no key, as every row is kept.
    keys : tuple of str
        The columns of the key, given as `key`: a name, or several.
    at : str
        The column with the event time of a row.

    Raises
    ------
    PlanError
        For another sink; at the start of the query for what a :class:`FeatureLog` refuses.
    ColumnError
        For a key or time that results do not have.
    SchemaError
        At the start of the query, for a table with other columns.

    Examples
    --------
    >>> from krishiv_py import DeltaSink, Session
    >>> from krishiv_py.features import FeatureTable
    >>> with Session.in_process() as session:
    ...     log = FeatureTable(DeltaSink(session.temporary_folder()), key="card", at="at")
    ...     features, sender = session.memory_stream("card string, at bigint, spent bigint")
    ...     query = features.start(log)
    ...     _ = sender.send([{"card": "a", "at": 1_000, "spent": 5}])
    ...     query.process_all_available()
    ...     log.read().select(["card", "spent", "batch"]).to_pylist()
    [{'card': 'a', 'spent': 5, 'batch': 0}]
    """

    table: DeltaSink | IcebergSink = attrs.field(converter=_table)
    keys: tuple[str, ...] = attrs.field(converter=_a_key, validator=_has_key)
    at: str = attrs.field(validator=_is_column)

    def __init__(self, table: DeltaSink | IcebergSink, *, key: str | Sequence[str], at: str) -> None:
        self.__attrs_init__(table, key, at)  # as of FeatureLog

    @property
    def table_id(self) -> tuple[str, ...]:
        """See :class:`~krishiv_py.connectors.tables.keys.KeyedTable`."""
        return self.table.table_id

    @property
    def log(self) -> bool:
        """Return whether changes are added as rows: every row is kept."""
        return True

    @property
    def _storage_sink(self) -> Sink:
        return self.table

    def dataset(self) -> Dataset | None:
        """Return the name of the table."""
        return self.table.dataset()

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Refuse what a feature log refuses, and what the table does not take: rows of `schema`, and the columns of a log."""
        FeatureSink.check(self, output, schema)
        self.table.check(output, pa.schema([*schema, *OF_LOG]))

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See :meth:`TransactionalSink.last_committed`."""
        return self.table.last_committed(batch)

    def begin(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.begin`."""
        self.table.begin(batch)

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """See :meth:`TransactionalSink.write`."""
        self.table.write(batch, table)

    def commit(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.commit`."""
        self.table.commit(batch)

    def abort(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.abort`."""
        self.table.abort(batch)

    def read(self) -> pa.Table:
        """Return all rows, micro-batch by micro-batch; a column that is newer than a row is null there.

        Raises
        ------
        SourceError
            Where there is no such table.
        OperatorError
            Where the table cannot be read.
        """
        rows = pa.concat_tables(self._pieces())
        return rows.take(pc.sort_indices(rows, [(BATCH, "ascending")]))

    def _pieces(self) -> Iterator[pa.Table]:
        pieces = _rows_of_delta(self.table) if isinstance(self.table, DeltaSink) else _rows_of_iceberg(self.table)
        return map(self._whole, pieces)


def _rows_of_delta(table: DeltaSink) -> Iterator[pa.Table]:
    there = delta_place.opened(table.path, table.storage_options)
    if there is None:
        raise _no_table(table.path)
    try:
        rows = there.to_pyarrow_dataset()
        yield rows.schema.empty_table()
        yield from map(_of_batch, rows.to_batches())
    except RAISED as problem:
        raise delta_place.refused(table.path, problem, table.storage_options) from None


def _rows_of_iceberg(table: IcebergSink) -> Iterator[pa.Table]:
    try:
        rows = iceberg_place.opened(table.catalog).load_table(table.table).scan().to_arrow_batch_reader()
        yield in_types_of_streams(rows.schema.empty_table())  # the reader gives large texts
        yield from (in_types_of_streams(_of_batch(batch)) for batch in rows)
    except iceberg_place.iceberg("exceptions").NoSuchTableError:
        raise _no_table(table.table) from None
    except RAISED as problem:
        raise table._refused(problem) from None


def _of_batch(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _no_table(name: str) -> SourceError:
    hint = "name the table that a query writes to: .start(FeatureTable(DeltaSink(path), ...))"
    return SourceError("there is no feature log", got=shown(name), then="there is no such table", hint=hint)


def _schema(file: Any) -> pa.Schema:
    with file:
        return open_parquet(file).schema_arrow


def _tables(file: Any) -> Iterator[pa.Table]:
    """Yield the rows of a file, a piece at a time."""
    with file:
        yield from map(_of_batch, open_parquet(file).iter_batches(_PIECE_ROWS))
