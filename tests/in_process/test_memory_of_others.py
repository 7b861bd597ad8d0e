"""Memory that a call has taken is the library's: who sent, returned or registered it may write to it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from krishiv_py import (
    MemorySink,
    ParquetSink,
    ResultStream,
    Session,
    SlidingWindows,
    Stream,
    WindowAssigner,
    collect_list,
    sum,
    udf,
    windows,
)
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.connectors import Planned, Source
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, micro_batches, stream_of, union_of

Numbers = npt.NDArray[Any]
N, SENDS, SPOILT = 4, 3, -1_000_000
SCHEMA = "at bigint, v double, id bigint, l array<double>, s string"


class Memory:
    """The buffers of a program, which it fills for each send."""

    def __init__(self) -> None:
        self.times, self.v, self.id = np.zeros(N, "i8"), np.zeros(N), np.zeros(N, "i8")
        self.text = np.zeros(N, "u1")

    def fill(self, i: int) -> None:
        """Put the rows of a send into them."""
        self.times[:] = np.arange(N) * 10 + 100 * i
        self.v[:], self.id[:], self.text[:] = np.arange(N) + 10 * i, np.arange(N) % 2, 97 + np.arange(N) + i

    def spoil(self) -> None:
        """Overwrite all of them."""
        for values in (self.times, self.v, self.id):
            values[:] = SPOILT
        self.text[:] = 63

    def columns(self) -> dict[str, pa.Array]:
        """Return the rows as Arrow data over the buffers, without a copy."""
        ends = pa.py_buffer(np.arange(N + 1, dtype="i4"))
        texts = pa.Array.from_buffers(pa.string(), N, [None, ends, pa.py_buffer(self.text)])
        lists = pa.ListArray.from_arrays(pa.array(np.arange(N + 1, dtype="i4")), pa.array(self.v))
        return {"at": pa.array(self.times), "v": pa.array(self.v), "id": pa.array(self.id), "l": lists, "s": texts}

    def table(self) -> pa.Table:
        """Return them as a table."""
        return pa.table(self.columns())


def _sliced(memory: Memory) -> pa.Table:
    """Return rows from the middle of larger buffers, so that none begins where a buffer does."""
    return pa.concat_tables([memory.table().slice(0, 1), memory.table().slice(1, 2), memory.table().slice(3)])


def _with_dictionary(memory: Memory) -> pa.Table:
    table = memory.table()
    coded = pa.DictionaryArray.from_arrays(pa.array(memory.id), pa.array(np.array([0, 1])))
    return table.set_column(2, "id", coded)


def _wide(memory: Memory) -> pa.RecordBatch:
    """Return a batch whose lists are of another layout, which is brought to that of the stream."""
    table = memory.table()
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(memory.v), 1)
    return table.set_column(3, "l", fixed).to_batches()[0]


class Exported:
    """Rows of a library that knows nothing of ours."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return them."""
        return self._table.__arrow_c_stream__(requested_schema)


def _frame(memory: Memory) -> pd.DataFrame:
    texts = {"l": [[x] for x in memory.v], "s": [chr(c) for c in memory.text]}
    return pd.DataFrame({"at": memory.times, "v": memory.v, "id": memory.id, **texts}, copy=False)


KINDS: dict[str, Callable[[Memory], Any]] = {
    "table": Memory.table,
    "batch": lambda memory: memory.table().to_batches()[0],
    "slice of a batch": lambda memory: pa.record_batch(memory.columns()).slice(0, N),
    "slices": _sliced,
    "dictionary": _with_dictionary,
    "other layout": _wide,
    "pandas": _frame,
    "pandas over Arrow": lambda memory: memory.table().to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda memory: pl.from_arrow(memory.table()),
    "reader": lambda memory: memory.table().to_reader(),
    "of another library": lambda memory: Exported(memory.table()),
    "list of dicts": lambda memory: memory.table().to_pylist(),
}
"""Kinds of rows that may be sent, over the memory of the program."""


def _timed(stream: Stream) -> TimedStream:
    return stream.watermark("at", "1 s")


def _rolling(stream: Stream) -> ResultStream:
    return _timed(stream).key_by("id").lookback_window("150 ms").agg(sum("v").alias("x"), collect_list("s").alias("y"))


PLACES: dict[str, Callable[[Stream], Any]] = {
    "look-back": _rolling,
    "look-back on arrival": lambda s: (
        _timed(s).key_by("id").lookback_window("150 ms", emit="arrival").agg(collect_list("v").alias("x"))
    ),
    "distinct sets": lambda s: _timed(s).key_by("id").windowed_by(SlidingWindows.of("150 ms")).agg(sum("v").alias("x")),
    "deduplication": lambda s: _timed(s).drop_duplicates("at", within="1 s"),
    "sessions": lambda s: _timed(s).key_by("id").session_window("1 s").agg(collect_list("s").alias("x")),
    "sessions with a longest": lambda s: (
        _timed(s).key_by("id").session_window("1 s", max_duration="5 s").agg(collect_list("v").alias("x"))
    ),
    "count window": lambda s: _timed(s).key_by("id").count_window(5).agg(collect_list("v").alias("x")),
    "hopping": lambda s: _timed(s).key_by("id").hopping_window("1 s", "500 ms").agg(collect_list("s").alias("x")),
    "best rows": lambda s: _timed(s).key_by("id").tumbling_window("1 s").top_rows(2, by="v"),
    "interval join": lambda s: _timed(s).key_by("id").interval_join(_right(s), lower="-100 ms", upper="100 ms"),
    "as-of join": lambda s: _timed(s).key_by("id").asof_join(_right(s)),
    "window join": lambda s: _timed(s).key_by("id").window_join(_right(s), window=windows.tumbling("1 s")),
    "rows with a time": _timed,
    "rows": lambda s: s.filter("id >= 0"),
    "rows and a computed column": lambda s: s.select("at", "s", "l", w="v"),
}
"""Plans that keep rows, or hand them on as they came."""


def _right(stream: Stream) -> Any:
    renamed = stream.select(rat="at", w="v", rid="id", q="s")
    return renamed.watermark("rat", "1 s").key_by("rid")


def _texts(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


def _live(make: Callable[[Memory], Any], at_once: bool, linger: bool) -> dict[str, list[str]]:
    """Return the results of every plan for rows over memory that is spoilt right after each send, or after its batch."""
    memory = Memory()
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA, linger="1 min" if linger else None)
        queries = {name: build(stream).start(MemorySink()) for name, build in PLACES.items()}
        for i in range(SENDS):
            memory.fill(i)
            if linger:
                sender.send_soon(make(memory))
            else:
                sender.send(make(memory))
            if not at_once:
                for query in queries.values():
                    query.process_all_available()
            memory.spoil()
        sender.close()
        for query in queries.values():
            query.process_all_available()
        return {name: _texts(query.results()) for name, query in queries.items()}


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[str]]:
    """Return the results for rows that share no memory with anybody."""
    results = _live(lambda memory: memory.table().to_pylist(), at_once=False, linger=False)
    assert all(results.values()), {name for name, rows in results.items() if not rows}
    return results


WAYS = [("after its batch", name) for name in KINDS] + [
    (way, name) for way in ("right after send", "while it waits") for name in ("table", "slices", "polars", "pandas")
]


@pytest.mark.one_in(11)
@pytest.mark.parametrize(("way", "name"), WAYS)
def test_rows_that_were_sent(way: str, name: str, wanted: dict[str, list[str]]) -> None:
    actual = _live(KINDS[name], at_once=way != "after its batch", linger=way == "while it waits")
    assert {name: rows for name, rows in actual.items() if rows != wanted[name]} == {}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_files_of_a_sink(make: Callable[[Memory], Any], tmp_path: Any) -> None:
    memory = Memory()
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        query = stream.watermark("at", "1 s").start(ParquetSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "checkpoint"))
        expected = []
        for i in range(SENDS):
            memory.fill(i)
            expected += memory.table().to_pylist()
            sender.send(make(memory))
            memory.spoil()
        sender.close()
        query.process_all_available()
    written = ds.dataset(sorted(map(str, (tmp_path / "out").glob("*.parquet")))).to_table()
    assert _texts(written) == sorted(map(str, expected))


class Late:
    """Keeps late rows."""

    wants: Literal["rows", "keys", "count"] = "rows"
    seen: ClassVar[list[pa.Table]] = []

    def handle(self, late: Any) -> None:
        """Keep them."""
        self.seen.append(late.table)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_late_rows(make: Callable[[Memory], Any]) -> None:
    memory, expected = Memory(), list[dict[str, Any]]()
    Late.seen.clear()
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        counted = stream.with_late_event_handler(Late()).watermark("at", 0).key_by("id").tumbling_window(10).agg(sum("v"))
        query = counted.start(MemorySink())
        for i in (9, 0, 1):
            memory.fill(i)
            expected += memory.table().to_pylist() if i < 9 else []
            sender.send(make(memory))
            query.process_all_available()
            memory.spoil()
        query.stop()
    names = memory.table().column_names
    assert _texts(pa.concat_tables(Late.seen).select(names)) == sorted(map(str, expected))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_driver(make: Callable[[Memory], Any]) -> None:
    results = []
    for kind in (make, lambda memory: memory.table().to_pylist()):
        drivers, memory, outputs = {n: Driver(build(stream_of(SCHEMA))) for n, build in PLACES.items()}, Memory(), []
        for i in range(SENDS):
            for name, driver in drivers.items():
                memory.fill(i)
                sent = {side: kind(memory) for side in ("left", "right")} if name.endswith("join") else kind(memory)
                outputs.append((name, driver.send(sent).results))
                memory.spoil()
        outputs += [(name, driver.close().results) for name, driver in drivers.items()]
        results.append([(name, _texts(table)) for name, table in outputs])
    assert results[0] == results[1]


def test_a_driver_of_two_streams() -> None:
    both = union_of({"a": stream_of("at bigint, v double"), "b": stream_of("at bigint, v double")})
    driver, memory = (
        Driver(both.watermark("at", "1 s").key_by("source").lookback_window("1 s").agg(sum("v").alias("x"))),
        Memory(),
    )
    memory.fill(0)
    driver.send({name: memory.table().select(["at", "v"]) for name in ("a", "b")})
    memory.spoil()
    assert sorted(driver.close().results["x"].to_pylist()) == sorted([0.0, 1.0, 3.0, 6.0] * 2)


class Refilled(Source):
    """Yields rows over one memory again and again."""

    schema = stream_of(SCHEMA).schema
    finite = True

    def __init__(self, make: Callable[[Memory], Any], one_range: bool) -> None:
        self.make, self.one_range = make, one_range

    def plan(self, last: Any) -> Planned | None:
        """All in one range, or one range a batch."""
        if self.one_range:
            return Planned(SENDS, [list(range(SENDS))]) if last is None else None
        number = 0 if last is None else last + 1
        return Planned(number, [[number]]) if number < SENDS else None

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[Any]:
        """Fill the memory, yield it, and spoil it."""
        memory = Memory()
        for number in planned:
            memory.fill(number)
            yield self.make(memory)
            memory.spoil()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("one_range", [True, False])
@pytest.mark.parametrize("name", [name for name in KINDS if name != "list of dicts"])
def test_a_source_over_one_memory(name: str, one_range: bool, wanted: dict[str, list[str]]) -> None:
    make = KINDS[name]
    places = ("rows with a time", "look-back", "distinct sets", "deduplication")
    with Session.in_process() as session:
        stream = session.read_source(Refilled(make, one_range))
        queries = {name: PLACES[name](stream).start(MemorySink()) for name in places}
        for query in queries.values():
            query.process_all_available()
        assert {name: _texts(query.results()) for name, query in queries.items()} == {name: wanted[name] for name in places}
        bounded = session.read_source(Refilled(make, one_range), name="again")
        assert _texts(PLACES["rows"](bounded).collect()) == wanted["rows"]
    rows = [row for table in micro_batches(Refilled(make, one_range)) for row in table.to_pylist()]
    assert sorted(map(str, rows)) == wanted["rows"]


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("list of dicts", "reader")])
def test_tables_that_rows_are_looked_up_in(name: str) -> None:
    make = KINDS[name]
    memory, stream = Memory(), stream_of("n bigint, at bigint")
    memory.fill(0)
    expected = [[0.0], [1.0], [2.0], [3.0]]
    joined = Driver(stream.lookup_join(make(memory), on=[("n", "at")], columns=["v", "s", "l"]))
    loaded = Driver(stream.lookup_join(lambda: make(memory), on=[("n", "at")], columns=["v", "s", "l"]))
    context = SqlContext()
    context.register("events", stream, event_time="at")
    context.register("wide", make(memory))
    first = loaded.send([{"n": 10 * n, "at": 1} for n in range(N)]).results
    memory.spoil()
    queried = context.sql("SELECT n, l, s FROM events JOIN wide ON events.n = wide.at")
    assert queried is not None
    for driver in (joined, loaded, Driver(queried)):
        rows = driver.send([{"n": 10 * n, "at": 1} for n in range(N)]).results
        assert (rows["l"].to_pylist(), rows["s"].to_pylist()) == (expected, ["a", "b", "c", "d"])
    assert first["l"].to_pylist() == expected


def test_what_functions_return() -> None:
    """A function that computes into one buffer gives it away with each call."""
    out = np.zeros(N)

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        out[:] = batch["v"].to_numpy() * 2
        return pa.record_batch({"at": batch["at"], "v": pa.array(out), "id": batch["id"]})

    @udf("double", over="numpy")
    def halved(values: Numbers) -> Numbers:
        out[:] = values / 2
        return out

    def run(stream: Stream) -> list[float]:
        driver, memory = (
            Driver(stream.watermark("at", "1 s").key_by("id").lookback_window("1 s").agg(sum("v").alias("x"))),
            Memory(),
        )
        for i in range(SENDS):
            memory.fill(i)
            driver.send(memory.table().select(["at", "v", "id"]))
            out[:] = SPOILT
        return [value / 2 for value in driver.close().results["x"].to_pylist()]

    plain = stream_of("at bigint, v double, id bigint")
    expected = run(plain.select("at", "id", v="v * 2"))
    assert run(plain.map_batches(doubled, "at bigint, v double, id bigint")) == expected
    assert run(plain.select("at", "id", v=halved("v"))) == [value / 4 for value in expected]


def test_windows_of_an_assigner() -> None:
    """An assigner that computes bounds into the same arrays each time gives them away, too."""

    class Tens(WindowAssigner):
        """Windows of 10 ms."""

        longest = "10 ms"
        starts, ends = np.zeros(N, "i8"), np.zeros(N, "i8")

        def assign(self, times: Numbers) -> tuple[Numbers, Numbers]:
            """Return the bounds."""
            self.starts[:] = times // 10_000 * 10_000
            self.ends[:] = self.starts + 10_000
            return self.starts, self.ends

    assigned = stream_of("at bigint, v double").watermark("at", "1 s").windowed_by(Tens()).agg(collect_list("v").alias("x"))
    driver, memory, expected = Driver(assigned), Memory(), []
    for i in range(SENDS):
        memory.fill(i)
        expected += [(t, t + 10, [v]) for t, v in zip(memory.times.tolist(), memory.v.tolist(), strict=True)]
        driver.send(memory.table().select(["at", "v"]))
    rows = driver.close().results.to_pylist()
    assert sorted((r["window_start"], r["window_end"], r["x"]) for r in rows) == sorted(expected)


def test_a_slice_takes_no_more_than_its_rows() -> None:
    """A row of a large table does not keep the whole table."""
    large = pa.table({"at": np.arange(1_000_000), "v": np.zeros(1_000_000), "s": pa.array(["x" * 10] * 1_000_000)})
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint, v double, s string")
        query = stream.filter("at >= 0").start(MemorySink())
        sender.send(large.slice(500, 2))
        query.process_all_available()
        assert query.results().get_total_buffer_size() < 10_000


def test_the_kinds_share_memory() -> None:
    """Without a copy these rows would be spoilt: most kinds are over the memory of the program."""
    memory, sharing = Memory(), set()
    for name, make in KINDS.items():
        memory.fill(0)
        rows = make(memory)
        memory.spoil()
        table = arrow_table(rows) if name != "list of dicts" else pa.Table.from_pylist(rows)
        assert table is not None
        if SPOILT in table["v"].to_pylist():
            sharing.add(name)
    assert sharing >= {"table", "batch", "slice of a batch", "slices", "dictionary", "other layout", "pandas", "reader"}
