"""Messages of PostgreSQL's logical replication (its documentation, "Logical Replication Message Formats"), column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers: TypeAlias = "npt.NDArray[np.int64]"
BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = (ord(kind) for kind in "BCRIUDT")
ROWS: Final = (INSERT, UPDATE, DELETE)
_NEW, _OLD, _KEY, _NULL, _KEPT = (ord(kind) for kind in "NOKnu")
_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01, from which PostgreSQL counts."""
_HEX: Final = np.full(256, 0, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


@attrs.frozen(eq=False)
class Values:
    """A column of rows as texts: where each begins, how long it is, and which are null or not sent."""

    buffer: npt.NDArray[np.uint8]
    starts: Numbers
    lengths: Numbers
    null: npt.NDArray[np.bool_]
    kept: npt.NDArray[np.bool_]

    def texts(self) -> pa.Array:
        """Return the texts."""
        lengths = np.where(self.null | self.kept, 0, self.lengths)
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total) + np.repeat(self.starts - (ends - lengths), lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        data = pa.py_buffer(self.buffer[places].tobytes())
        valid = pa.array(~(self.null | self.kept))
        whole = pa.Array.from_buffers(pa.large_string(), len(lengths), [None, pa.py_buffer(offsets.tobytes()), data])
        return pc.if_else(valid, whole, pa.scalar(None, pa.large_string())).cast(pa.string())


@attrs.frozen
class Relation:
    """A table as a message describes it: the names of its columns, in order."""

    schema: str
    name: str
    columns: tuple[str, ...]


@attrs.frozen(eq=False)
class Rows:
    """Rows of one table of some changes, in one layout.

    Attributes
    ----------
    relation : Relation
        Their table.
    kind : str
        What a change feed calls them.
    at : numpy array
        The number of the message of each.
    columns : mapping of Values
        The columns by name. A row that only says the key it had has nulls elsewhere.
    """

    relation: Relation
    kind: str
    at: Numbers
    columns: Mapping[str, Values]


@attrs.frozen(eq=False)
class Messages:
    """Messages one after the other."""

    buffer: npt.NDArray[np.uint8]
    starts: Numbers

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Messages:
        """Return these `messages`."""
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        buffer = np.frombuffer(b"".join(messages), np.uint8)
        return cls(buffer, np.cumsum(lengths) - lengths)

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """Return the kind of each."""
        return self.buffer[self.starts]

    def number(self, at: Numbers, size: int) -> Numbers:
        """Return the whole numbers of `size` bytes at some places."""
        made = np.zeros(len(at), np.int64)
        for place in range(size):
            made = (made << 8) | self.buffer[at + place]
        return made

    def transactions(self) -> tuple[Numbers, Numbers]:
        """Return of each message where the commit of its transaction is in the log, and its time, µs since the epoch."""
        begins = np.flatnonzero(self.kinds == BEGIN)
        at = self.starts[begins] + 1
        of = np.searchsorted(begins, np.arange(len(self.starts)), side="right") - 1
        return self.number(at, 8)[of], self.number(at + 8, 8)[of] + _EPOCH_US

    def relations(self) -> list[tuple[int, int, Relation]]:
        """Return the tables that are described: the number of the message, the number of the table, and what it says."""
        made = []
        for number in np.flatnonzero(self.kinds == RELATION):
            end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.buffer)
            made.append((int(number), *_relation(self.buffer[self.starts[number] : end].tobytes())))
        return made

    def truncated(self, relation: int) -> Numbers:
        """Return the numbers of messages that truncate a table."""
        found = []
        for number in np.flatnonzero(self.kinds == TRUNCATE):
            start = int(self.starts[number])
            many = int(self.number(np.array([start + 1]), 4)[0])
            if relation in self.number(start + 6 + 4 * np.arange(many), 4):
                found.append(number)
        return np.array(found, np.int64)

    def rows(self, wanted: Callable[[Relation], bool]) -> list[Rows]:
        """Return the rows of the tables that are `wanted`."""
        kinds = self.kinds
        changes = np.flatnonzero(np.isin(kinds, ROWS))
        tables = self.number(self.starts[changes] + 1, 4)
        described = self.relations()
        made: list[Rows] = []
        for table in dict.fromkeys(oid for _, oid, _ in described):
            at = [number for number, oid, _ in described if oid == table]
            layouts = [relation for _, oid, relation in described if oid == table]
            own = changes[tables == table]
            for layout, part in zip(layouts, np.split(own, np.searchsorted(own, at[1:])), strict=True):
                if wanted(layout):
                    made += self._rows_of(layout, part[kinds[part] == INSERT], "insert")
                    made += self._updates(layout, part[kinds[part] == UPDATE])
                    made += self._rows_of(layout, part[kinds[part] == DELETE], "delete")
        return made

    def _rows_of(self, layout: Relation, at: Numbers, kind: str) -> list[Rows]:
        return [Rows(layout, kind, at, self._tuples(layout, self.starts[at] + 6)[0])] if len(at) else []

    def _updates(self, layout: Relation, at: Numbers) -> list[Rows]:
        """Return the rows after updates, and those before them where the log has them: whole, or the key that was."""
        first = self.starts[at] + 5
        marks = self.buffer[first]
        made: list[Rows] = []
        for mark in (_KEY, _OLD):
            part = marks == mark
            if part.any():
                before, then = self._tuples(layout, first[part] + 1)
                after, _ = self._tuples(layout, then + 1)
                if mark == _OLD:
                    after = {name: _filled(values, before[name]) for name, values in after.items()}
                made.append(Rows(layout, "update_preimage", at[part], before))
                made.append(Rows(layout, "update_postimage", at[part], after))
        plain = marks == _NEW
        if plain.any():
            made.append(Rows(layout, "update_postimage", at[plain], self._tuples(layout, first[plain] + 1)[0]))
        return made

    def _tuples(self, layout: Relation, at: Numbers) -> tuple[dict[str, Values], Numbers]:
        """Return the columns of rows that begin at some places, and where each ends."""
        at = at + 2  # how many columns follow: as many as the table has
        columns = dict[str, Values]()
        for name in layout.columns:
            marks = self.buffer[at]
            null, kept = marks == _NULL, marks == _KEPT
            sent = ~(null | kept)
            lengths = np.zeros(len(at), np.int64)
            lengths[sent] = self.number(at[sent] + 1, 4)
            columns[name] = Values(self.buffer, at + 5, lengths, null, kept)
            at = at + np.where(sent, 5 + lengths, 1)
        return columns, at


def _relation(message: bytes) -> tuple[int, Relation]:
    schema, name, rest = message[5:].split(b"\0", 2)
    many, rest, columns = int.from_bytes(rest[1:3], "big"), rest[3:], list[str]()
    for _ in range(many):
        column, rest = rest[1:].split(b"\0", 1)
        columns.append(column.decode())
        rest = rest[8:]
    relation = Relation(schema.decode() or "pg_catalog", name.decode(), tuple(columns))
    return int.from_bytes(message[1:5], "big"), relation


def _filled(values: Values, before: Values) -> Values:
    """Return values where those that were not sent, for they did not change, are those of `before`."""
    return Values(
        values.buffer,
        np.where(values.kept, before.starts, values.starts),
        np.where(values.kept, before.lengths, values.lengths),
        np.where(values.kept, before.null, values.null),
        values.kept & before.kept,
    )


_OF: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}


def column_type(declared: str) -> pa.DataType:
    """Return the type of a column by what PostgreSQL calls its own; texts for all that this library has no type of."""
    name = declared
    if declared.startswith("timestamp("):  # timestamp(3) without time zone
        name = "timestamp" + declared[declared.index(")") + 1 :]
    if declared.startswith("numeric(") and not declared.endswith("]"):
        precision, scale = (int(part) for part in declared[8:-1].split(","))
        return pa.decimal128(precision, scale) if precision <= 38 and 0 <= scale <= precision else pa.string()
    return _OF.get(name, pa.string())


def values_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of texts as PostgreSQL writes them in ISO style and UTC.

    Raises
    ------
    pyarrow.ArrowInvalid
        For a value that the type does not have, such as an infinite time.
    """
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_binary(kind):
        return _bytes(texts)
    if pa.types.is_timestamp(kind):
        plain = pc.replace_substring_regex(texts, r"\+00$", "") if kind.tz is not None else texts
        return plain.cast(pa.timestamp("us")).cast(kind) if kind.tz is None else _in_utc(plain.cast(pa.timestamp("us")))
    return texts.cast(kind)


def _in_utc(values: pa.Array) -> pa.Array:
    return pc.assume_timezone(values, "UTC")


def _bytes(texts: pa.Array) -> pa.Array:
    r"""Return the bytes of texts such as ``\x00ff``."""
    body: Any = pc.utf8_slice_codeunits(texts, 2)
    offsets = np.frombuffer(body.buffers()[1], np.int32)[body.offset : body.offset + len(body) + 1].astype(np.int64)
    data = body.buffers()[2]
    digits = _HEX[np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]] if data is not None else np.empty(0, np.uint8)
    made = pa.py_buffer(((digits[0::2] << 4) | digits[1::2]).astype(np.uint8).tobytes())
    places = pa.py_buffer(((offsets - offsets[0]) // 2).astype(np.int32).tobytes())
    whole = pa.Array.from_buffers(pa.binary(), len(body), [None, places, made])
    return pc.if_else(texts.is_valid(), whole, pa.scalar(None, pa.binary()))
