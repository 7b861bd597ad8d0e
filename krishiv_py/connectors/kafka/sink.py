"""A topic as a sink: results, late rows, change logs; each batch is a transaction with its own note inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa

from krishiv_py.connectors.kafka.settings import Connection, connection
from krishiv_py.connectors.kafka.writing import Message, Writer
from krishiv_py.connectors.sink import OnRepeat, OutputBatch
from krishiv_py.connectors.transactional import TransactionalSink
from krishiv_py.errors import OperatorError, PlanError, message, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import a_switch, a_text, known_column, one_of, wait_us

if TYPE_CHECKING:
    from krishiv_py.connectors.json import texts
else:
    texts = lazy("krishiv_py.connectors.json.texts")

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
SinkFormat: TypeAlias = Literal["json", "bytes"]
_AT_A_TIME: Final = 50_000
_OP: Final = "op"


class _Writers(dict[tuple[str, str], Writer]):
    """Connections by query and output. They stay behind when a sink is copied to another process."""

    def __reduce__(self) -> tuple[type[_Writers], tuple[()]]:
        return _Writers, ()


def _columns(value: object) -> tuple[str, ...]:
    names = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise PlanError(message("`key` names columns", shown(value), "no key is meant", 'write key="user" or key=["a", "b"]'))
    return tuple(a_text(name, "key", 'write key="user" or key=["user", "window_start"]') for name in names)


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        hint = 'write headers={"name": "column"}'
        raise PlanError(message("`headers` are names with columns", shown(value), "no header is meant", hint))
    for name, column in value.items():
        a_text(name, "headers", 'write headers={"name": "column"}')
        a_text(column, "headers", 'write headers={"name": "column"}')
        if name.startswith("krishiv-"):
            hint = "choose a name that does not begin with krishiv-"
            raise PlanError(message("a header has a name of the library", name, "batches could not be told apart", hint))
    return tuple(value.items())


class KafkaSink(TransactionalSink):
    """Writes rows to a topic of Kafka, exactly once (docs/kafka.md). Needs the extra ``krishiv_py[kafka]``.

    Each micro-batch is one transaction. The note that it was published is committed inside the transaction, as the offset of a
    consumer group, so a batch that is published again is recognised. Consumers must read with
    ``isolation.level=read_committed``. Every record has the headers ``krishiv-query``, ``krishiv-output``, ``krishiv-batch``
    and ``krishiv-row``, the number of the row in the batch.

    Parameters
    ----------
    topic : str
        The topic. It must exist.
    bootstrap_servers : str
        ``host:port``, several separated by commas.
    key : str or sequence of str, optional
        The columns of the key. One column is written as text (bytes as they are), several as a JSON object. Equal keys go to
        one partition, the same as with Java's producer.
    format : {"json", "bytes"}
        How values are written: a JSON object of all columns, or the one column `value` (text or binary) as it is.
    value : str, optional
        For ``format="bytes"``: the column that is the value.
    headers : mapping of str to str, optional
        Further headers: their names, and the columns they have.
    upsert : bool
        For a compacted topic: a row takes the place of the one with the same key. Of a change log (column ``op``) the rows
        ``+I`` and ``+U`` are written without ``op``, ``-D`` as a tombstone, and ``-U`` not at all. Needs a key without nulls.
    delivery : {"exactly_once", "at_least_once"}
        With or without transactions.
    timeout : str
        How long to wait for a broker before the query fails.
    options : mapping, optional
        Settings of librdkafka. Values of secret ones are never shown.

    Raises
    ------
    PlanError
        For arguments that mean nothing, and for options that the library sets itself.
    """

    __slots__ = ("_connection", "_headers", "_key", "_rows", "_upsert", "_value", "_within_s", "_writers", "guarantee", "topic")

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str,
        key: str | Sequence[str] | None = None,
        format: SinkFormat = "json",  # noqa: A002  # the name of the setting everywhere
        value: str | None = None,
        headers: Mapping[str, str] | None = None,
        upsert: bool = False,
        delivery: Guarantee = "exactly_once",
        timeout: str = "60 s",
        options: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self.topic = a_text(topic, "topic", 'pass the name of a topic: KafkaSink("results", ...)')
        self._connection: Connection = connection(bootstrap_servers, options)
        self._key = _columns(key)
        one_of(format, "format", ("json", "bytes"))
        if (format == "bytes") != (value is not None):
            hint = 'write format="bytes", value="column"; JSON objects have all columns'
            raise PlanError(message('`value` belongs to format="bytes"', shown(value), "no value is meant", hint))
        self._value = None if value is None else a_text(value, "value", "pass the name of a column")
        self._headers = _headers(headers)
        self._upsert = a_switch(upsert, "upsert")
        if self._upsert and not self._key:
            hint = 'name the columns of the key: key=["user", "window_start"]'
            raise PlanError(message("`upsert` needs a key", "no key", "no row takes the place of another", hint))
        one_of(delivery, "delivery", ("exactly_once", "at_least_once"))
        self.guarantee: Guarantee = delivery
        self._within_s = wait_us(timeout, "timeout") / 1_000_000
        self._writers = _Writers()
        self._rows: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"KafkaSink({self.topic!r}, {self._connection!r}, {self.guarantee})"

    @property
    def on_repeat(self) -> OnRepeat:  # type: ignore[override]  # follows from what was told
        """What happens to a batch that is published again."""
        return "skip" if self.guarantee == "exactly_once" else "at_least_once"

    @property
    def title(self) -> str:
        """What errors and plans call it."""
        return f"KafkaSink {self.topic}"

    def last_committed(self, batch: OutputBatch) -> int | None:
        """Connect, and read the note of the last transaction of this query and output of `batch`."""
        self._check(batch.schema)
        at = (batch.query_id, batch.output)
        if (before := self._writers.pop(at, None)) is not None:
            before.close()
        exactly = self.guarantee == "exactly_once"
        writer = Writer(self._connection, self.topic, f"krishiv-{batch.query_id}-{batch.output}", exactly, self._within_s)
        writer.open()
        self._writers[at] = writer
        return writer.last() if exactly else None

    def begin(self, batch: OutputBatch) -> None:
        """Begin the transaction of a `batch`."""
        self._rows[batch.query_id, batch.output] = 0
        if self.guarantee == "exactly_once":
            self._writer(batch).begin()

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """Add the rows of `table` to the transaction of this `batch`."""
        writer, at = self._writer(batch), (batch.query_id, batch.output)
        for part in table.combine_chunks().to_batches(max_chunksize=_AT_A_TIME):
            writer.write(self._messages(batch, pa.Table.from_batches([part]), self._rows[at]))
            self._rows[at] += part.num_rows

    def commit(self, batch: OutputBatch) -> None:
        """Make the rows visible, together with the note of this `batch`."""
        writer = self._writer(batch)
        if self.guarantee == "exactly_once":
            writer.commit(batch.batch_id)
        else:
            writer.flush()

    def abort(self, batch: OutputBatch) -> None:
        """Take back what was written of this `batch`, where there are transactions."""
        if self.guarantee == "exactly_once":
            self._writer(batch).abort()

    def _writer(self, batch: OutputBatch) -> Writer:
        return self._writers[batch.query_id, batch.output]

    def _check(self, schema: pa.Schema) -> None:
        """Refuse columns that there are not."""
        where = f"{self.title}: "
        for name in self._key:
            known_column(name, schema.names, f"{where}key")
        for _, name in self._headers:
            known_column(name, schema.names, f"{where}headers")
        if self._value is not None:
            known_column(self._value, schema.names, f"{where}value")
            type_ = schema.field(self._value).type
            if not (pa.types.is_string(type_) or pa.types.is_binary(type_)):
                hint = 'cast it to text, or use format="json"'
                raise PlanError(message(f"{where}a value is text or binary", type_, "it has no bytes", hint))

    def _messages(self, batch: OutputBatch, table: pa.Table, first: int) -> list[Message]:
        """The messages of rows; withdrawals are tombstones or nothing."""
        n = table.num_rows
        ops = table.column(_OP).to_pylist() if self._upsert and _OP in table.column_names else ["+I"] * n
        names = [name for name in table.column_names if not (self._upsert and name == _OP)]
        values = _bytes(table.column(self._value) if self._value else texts.objects(table, names))
        keys = self._keys(table)
        own: list[tuple[str, bytes | None]] = [
            ("krishiv-query", batch.query_id.encode()),
            ("krishiv-output", batch.output.encode()),
            ("krishiv-batch", str(batch.batch_id).encode()),
        ]
        columns = [[(name, v) for v in _bytes(_text(table.column(c)))] for name, c in self._headers]
        more: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * n
        return [
            (None if ops[at] == "-D" else values[at], keys[at], [*own, ("krishiv-row", b"%d" % (first + at)), *more[at]])
            for at in range(n)
            if ops[at] != "-U" or not self._upsert
        ]

    def _keys(self, table: pa.Table) -> list[bytes | None]:
        if not self._key:
            return [None] * table.num_rows
        if len(self._key) > 1:
            return _bytes(texts.objects(table, self._key))
        keys = _bytes(_text(table.column(self._key[0])))
        if self._upsert and None in keys:
            hint = "name two columns or more, which are written as a JSON object with null"
            raise OperatorError(
                message(f"{self.title}: a row has no key", f"null in {self._key[0]!r}", "nothing could take its place", hint)
            )
        return keys


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as it stands in a key or header: text and bytes as they are, other values as JSON writes them."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column
    written = [
        None if v is None else t.strip('"') for v, t in zip(column.to_pylist(), texts.texts(column).to_pylist(), strict=True)
    ]
    return pa.chunked_array([written], pa.string())


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found
