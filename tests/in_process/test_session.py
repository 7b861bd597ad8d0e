"""Sessions that run in this process: what works without Spark, what is refused, and what a checkpoint keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    Batches,
    CheckpointError,
    JsonSink,
    KrishivError,
    MemorySink,
    OperatorError,
    ParquetSink,
    PlanError,
    Session,
    SessionClosedError,
    SideOutputLateEventHandler,
    SourceError,
    collect_list,
    count,
    sum,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import Planned, Source
from krishiv_py.runtime.checkpoint.notes import check_engine
from krishiv_py.storage.store import known_settings, use
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, at bigint, amount bigint"
NOW = Batches.available_now()


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of its own."""
    with Session.in_process() as made:
        yield made


def rows(n: int, first: int = 0) -> list[dict[str, Any]]:
    """So many rows, a second apart."""
    return [{"user": f"u{i % 3}", "at": i * 1_000, "amount": i} for i in range(first, first + n)]


def per_minute(stream: Stream) -> ResultStream:
    """Counts and sums by user and minute."""
    return stream.watermark("at", 5_000).key_by("user").tumbling_window(60_000).agg(count(), sum("amount").alias("sum"))


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    """Rows, sorted by all that is in them."""
    return sorted(table.to_pylist(), key=repr)


def by_driver(*sends: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the test driver gives, without the end of input."""
    driver = Driver(per_minute(stream_of(SCHEMA)))
    return sorted((row for sent in sends for row in driver.send(sent).results.to_pylist()), key=repr)


def test_no_part_of_spark_is_loaded_and_pandas_need_not_be_there() -> None:
    code = """
import sys
class WithoutPandas:
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, WithoutPandas())
from krishiv_py import MemorySink, Session, count
with Session.in_process() as session:
    stream, sender = session.memory_stream("at bigint")
    windows = stream.watermark("at", 0).tumbling_window(10).agg(count())
    sender.send([{"at": 1}, {"at": 25}])
    query = windows.start(MemorySink())
    query.process_all_available()
    assert query.results().num_rows == 1
    assert windows.collect().num_rows == 2
print(sorted(m for m in sys.modules if m.split(".")[0] in ("pyspark", "py4j")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_a_query_gives_what_the_driver_gives(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    query = per_minute(stream).start(MemorySink())
    sends = [rows(70), rows(70, 70), rows(10, 30), rows(100, 140)]
    for sent in sends:
        sender.send(sent)
        query.process_all_available()
    assert in_order(query.results()) == by_driver(*sends)
    assert query.progress.late["late"] == 10
    assert query.pending_keys == 3
    assert query.state().num_rows == query.progress.open_windows * 3
    assert "fires when the watermark reaches" in query.why_not_fired()
    assert "in process" in query.explain()
    query.stop()
    assert query.status == "stopped"


def test_a_query_goes_on_where_it_was_stopped(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
    checkpoint, sends = str(tmp_path / "checkpoint"), [rows(70, 70 * n) for n in range(6)]
    for sent in sends:
        query = per_minute(stream).start(ParquetSink(str(tmp_path / "out")), checkpoint=checkpoint)
        sender.send(sent)
        query.process_all_available()
        query.stop()
    assert in_order(pq.read_table(tmp_path / "out")) == by_driver(*sends)
    again = per_minute(stream).start(ParquetSink(str(tmp_path / "out")), checkpoint=checkpoint)
    again.process_all_available()
    assert again.progress.rows == 420
    assert again.id == query.id


def test_a_new_session_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def part(sent: list[dict[str, Any]]) -> None:
        with Session.in_process(profile="single-node-durable") as own:
            stream, sender = own.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
            sender.send(sent)
            query = per_minute(stream).start(
                ParquetSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "checkpoint"), batches=NOW
            )
            assert query.await_termination("60 s")

    part(rows(100))
    part(rows(100, 100))
    assert in_order(pq.read_table(tmp_path / "out")) == by_driver(rows(100), rows(100, 100))


def test_flush_and_snapshot(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(rows(10))
    shown = per_minute(stream).with_pane().start(MemorySink(), batches=Batches.available_now(snapshot=True))
    assert shown.await_termination("60 s")
    assert [row["pane_timing"] for row in shown.results().to_pylist()] == ["early"] * 3
    flushed = per_minute(stream).start(MemorySink(), batches=Batches.available_now(flush=True))
    assert flushed.await_termination("60 s")
    assert flushed.results().num_rows == 3


def test_files_are_read_as_they_come(session: Session, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def write(number: int) -> None:
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows(70, 70 * number)), tmp_path / f"{number}.tmp")
        os.utime(tmp_path / f"{number}.tmp", (1_600_000_000 + number,) * 2)
        os.rename(tmp_path / f"{number}.tmp", path)

    write(0)
    stream = session.read_parquet(str(tmp_path / "in"), streaming=True, max_files_per_batch=1)
    query = per_minute(stream).start(JsonSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "checkpoint"))
    query.process_all_available()
    write(1)
    write(2)
    query.process_all_available()
    query.stop()
    actual = [json.loads(line) for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert sorted(actual, key=repr) == by_driver(*(rows(70, 70 * n) for n in range(3)))
    whole = session.read_parquet(str(tmp_path / "in"))
    assert per_minute(whole).collect().num_rows == 12


class Numbers(Source):
    """Ten rows a batch."""

    schema = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
    finite = True

    def plan(self, last: Any) -> Planned | None:
        """The next ten."""
        first = 0 if last is None else last
        return None if first >= 100 else Planned(first + 10, [[first, first + 5], [first + 5, first + 10]])

    def read(self, planned: Any, columns: Any) -> Iterator[pa.RecordBatch]:
        """Some of them."""
        low, high = planned
        yield pa.RecordBatch.from_pylist(rows(high - low, low), self.schema)


def test_own_sources_end(session: Session, tmp_path: Path) -> None:
    stream = session.read_source(Numbers())
    query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    query.process_all_available()
    assert query.progress.rows == 100
    assert in_order(query.results()) == in_order(per_minute(stream).collect())
    query.stop()


def test_several_outputs_and_sql(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    few, rest = stream.split("amount < 50")
    late = SideOutputLateEventHandler(MemorySink())
    counts = few.watermark("at", 0).with_late_event_handler(late).tumbling_window(10_000).agg(count())
    query = session.start([counts.to(MemorySink(), name="counts"), rest.to(ParquetSink(str(tmp_path / "rest")), name="rest")])
    sender.send(rows(40))
    sender.send(rows(30, 40))
    sender.send(rows(1))
    query.process_all_available()
    assert query.results("counts")["count"].to_pylist() == [10, 10, 10, 10]
    assert pq.read_table(tmp_path / "rest").num_rows == 20
    assert query.late_rows().num_rows == 1
    session.register("t", stream, event_time="at", lag=0)
    windows = "TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '1' MINUTE))"
    actual = session.sql(f"SELECT user, window_start, COUNT(*) AS n FROM {windows} GROUP BY user, window_start, window_end")
    assert actual is not None
    assert actual.collect()["n"].to_pylist()


def test_two_queries_side_by_side(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    queries = [per_minute(stream).start(MemorySink(), name=f"q{n}") for n in range(3)]
    for n in range(5):
        sender.send(rows(70, 70 * n))
    for query in queries:
        query.process_all_available()
    assert len({str(in_order(q.results())) for q in queries}) == 1
    assert session.queries == queries


def test_what_needs_spark_says_so(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"user": "a", "at": 1}')
    json_ = session.read_json(str(tmp_path), "user string, at bigint", allowComments="true")
    stream, _ = session.memory_stream(SCHEMA)
    calls: list[Any] = [
        lambda: json_.watermark("at", 0).tumbling_window(10).agg(count()).collect(),
        lambda: json_.start(MemorySink()),
        lambda: session.spark,
        lambda: session.table("db.t"),
        lambda: per_minute(stream).to_dataframe(),
        lambda: per_minute(stream).start(lambda frame, batch: None),
        lambda: session.rescale(str(tmp_path / "c"), 2),
    ]
    for call in calls:
        with pytest.raises(PlanError, match=r"(?s)Spark.*Hint: "):
            call()
    with pytest.raises(SourceError, match=r"pass schema="):
        session.read_json(str(tmp_path))
    with pytest.raises(PlanError, match="single-node-durable"):
        Session.in_process(profile="distributed-durable")


def test_the_way_out_of_a_file_that_cannot_be_read_is_one(session: Session, tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(SourceError, match=r'on_malformed="side_output"'):
        session.read_parquet(str(tmp_path))
    late = MemorySink()
    rows = session.read_parquet(str(tmp_path), schema=SCHEMA, on_malformed="side_output")
    query = per_minute(rows).with_late_event_handler(SideOutputLateEventHandler(late)).start(MemorySink())
    query.process_all_available()
    query.stop()
    aside = late.table()
    assert query.progress.late["malformed"] == 1 and aside is not None and aside.num_rows == 1


def test_a_failure_ends_the_query_and_the_batch_is_run_again(session: Session, tmp_path: Path) -> None:
    flag = tmp_path / "mended"

    def breaks(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not flag.exists() and 75 in batch["amount"].to_pylist():
            raise ValueError("no row 75 today")
        return batch

    stream, sender = session.memory_stream(SCHEMA)
    plan = per_minute(stream.map_batches(breaks))
    out, checkpoint = MemorySink(), str(tmp_path / "checkpoint")
    query = plan.start(out, checkpoint=checkpoint)
    sender.send(rows(70))
    sender.send(rows(70, 70))
    with pytest.raises(OperatorError, match="no row 75 today"):
        query.process_all_available()
    assert query.status == "failed"
    assert isinstance(query.exception(), KrishivError)
    flag.touch()
    again = plan.start(out, checkpoint=checkpoint)
    again.process_all_available()
    assert in_order(again.results()) == by_driver(rows(70), rows(70, 70))


def test_checkpoints_are_held_by_one_query_and_one_plan(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    checkpoint = str(tmp_path / "checkpoint")
    sender.send(rows(70))
    query = per_minute(stream).start(MemorySink(), checkpoint=checkpoint)
    query.process_all_available()
    with pytest.raises(CheckpointError):
        per_minute(stream).start(MemorySink(), checkpoint=checkpoint)
    query.stop()
    with pytest.raises(CheckpointError, match="another plan"):
        stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink(), checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match=r"Session\.in_process"):
        check_engine(checkpoint, "spark")
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "metadata").write_text("{}")
    with pytest.raises(CheckpointError, match=r"Session\.embedded"):
        per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "spark"))
    check_engine(str(tmp_path / "spark"), "spark")


@pytest.mark.parametrize("damage", ["cut", "flip", "lost"])
def test_a_damaged_state_is_an_error(session: Session, tmp_path: Path, damage: str) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    plan = stream.watermark("at", 10_000_000).key_by("user").tumbling_window(60_000).agg(collect_list("amount"))
    checkpoint = tmp_path / "checkpoint"
    query = plan.start(MemorySink(), checkpoint=str(checkpoint))
    for n in range(4):
        sender.send(rows(20, 20 * n))
        query.process_all_available()
    query.stop()
    path = checkpoint / "krishiv" / "state" / "000000000002.state"
    data = bytearray(path.read_bytes())
    if damage == "lost":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match="000000000002"):
        plan.start(MemorySink(), checkpoint=str(checkpoint))


def test_the_state_log_is_cleaned(session: Session, tmp_path: Path) -> None:
    """Files do not pile up, whatever is open, and what is open survives."""
    stream, sender = session.memory_stream(SCHEMA)
    plan = stream.watermark("at", 10_000_000).key_by("user").tumbling_window(60_000).agg(collect_list("amount").alias("all"))
    checkpoint = tmp_path / "checkpoint"
    query = plan.start(MemorySink(), checkpoint=str(checkpoint))
    for n in range(120):
        sender.send(rows(20, 20 * (n % 7)))
    query.process_all_available()
    before = in_order(query.state().drop_columns(["last_update"]))
    query.stop()
    assert len(list((checkpoint / "krishiv" / "state").glob("*.state"))) < 40
    again = plan.start(MemorySink(), checkpoint=str(checkpoint))
    again.process_all_available()
    assert in_order(again.state().drop_columns(["last_update"])) == before
    again.stop()


def test_large_tables_are_files_that_go_when_they_are_replaced(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("at bigint, text string")
    plan = stream.watermark("at", 0).tumbling_window(1_000).agg(collect_list("text").alias("all"))
    checkpoint = tmp_path / "checkpoint"
    query = plan.start(MemorySink(), checkpoint=str(checkpoint))
    sender.send([{"at": 1, "text": "x" * 100_000}])
    query.process_all_available()
    assert len(list((checkpoint / "krishiv" / "state" / "chunks").iterdir())) == 1
    query.stop()
    query = plan.start(MemorySink(), checkpoint=str(checkpoint))
    sender.send([{"at": 5_000, "text": "y"}])
    query.process_all_available()
    assert query.results()["all"].to_pylist() == [["x" * 100_000]]
    assert list((checkpoint / "krishiv" / "state" / "chunks").iterdir()) == []


def test_a_stopped_session_starts_nothing() -> None:
    session = Session.in_process()
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(rows(1))
    session.stop()
    for call in (lambda: per_minute(stream).start(MemorySink()), lambda: per_minute(stream).collect()):
        with pytest.raises(SessionClosedError):
            call()


def test_a_closed_key_has_no_result(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    plan = stream.watermark("at", 0).key_by("user").session_window(60_000).agg(count())
    query = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    sender.send(rows(30))
    query.process_all_available()
    query.close_key("u1")
    query.stop()
    query = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    sender.send([{"user": "u0", "at": 500_000, "amount": 1}])
    query.process_all_available()
    assert [row["user"] for row in query.results().to_pylist()] == ["u0", "u2"]
    assert query.progress.counters["close_key_dropped"] == 1
    with pytest.raises(PlanError):
        query.close_key(("u0", 1))
    query.stop()
    with pytest.raises(OperatorError):
        query.close_key("u0")


def test_the_state_of_a_stopped_query_is_read_from_its_checkpoint(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    plan, checkpoint = per_minute(stream), str(tmp_path / "checkpoint")
    query = plan.start(MemorySink(), checkpoint=checkpoint)
    empty = session.read_state(checkpoint, plan)
    sender.send(rows(200))
    query.process_all_available()
    running = query.state()
    assert empty.num_rows == 0 < running.num_rows
    assert session.read_state(checkpoint, plan).equals(running)
    query.stop()
    before = sorted(p.name for p in Path(checkpoint).rglob("*"))
    with Session.in_process() as other:
        again = per_minute(other.memory_stream(SCHEMA)[0])
        assert other.read_state(checkpoint, again).equals(running)
        assert sorted(p.name for p in Path(checkpoint).rglob("*")) == before
        with pytest.raises(CheckpointError, match="kept its state"):
            other.read_state(str(tmp_path / "nothing"), again)
        with pytest.raises(CheckpointError, match="another plan"):
            other.read_state(
                checkpoint, other.memory_stream(SCHEMA)[0].watermark("at", 0).key_by("user").count_window(2).agg(count())
            )
        with pytest.raises(PlanError, match="stage"):
            other.read_state(checkpoint, again, stage="none")
        next(Path(checkpoint, "krishiv/state").glob("*.state")).write_bytes(b"damaged")
        with pytest.raises(CheckpointError, match="damaged"):
            other.read_state(checkpoint, again)
        assert not (tmp_path / "nothing").exists()


def test_the_state_is_read_while_batches_replace_it(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    plan, checkpoint = per_minute(stream), str(tmp_path / "checkpoint")
    query = plan.start(MemorySink(), checkpoint=checkpoint, batches=Batches.target("1 second", max_rows=20))
    for n in range(60):
        sender.send(rows(20, 20 * n))
    while query.progress.rows < 60 * 20:
        assert session.read_state(checkpoint, plan).column_names == query.state().column_names
    query.stop()
    assert session.read_state(checkpoint, plan).equals(query.state())


def test_a_builder_names_the_engine(tmp_path: Path) -> None:
    with Session.builder().engine("in-process").profile("single-node-durable").get_or_create() as session:
        stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
        query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        sender.send(rows(200))
        query.process_all_available()
        assert in_order(query.results()) == by_driver(rows(200))
    builder = Session.builder().engine("in-process")
    refused = {
        "master": builder.master("local[2]"),
        "app_name": builder.app_name("orders"),
        "spark.sql.shuffle.partitions": builder.config("spark.sql.shuffle.partitions", 4),
        "spark.hadoop.io.file": builder.config("spark.hadoop.io.file", 4),
        "one machine": builder.profile("distributed-durable"),
    }
    for said, one in refused.items():
        with pytest.raises(PlanError, match=rf"(?s){said}.*Hint: .*engine\(\"spark\"\)"):
            one.get_or_create()
    with pytest.raises(PlanError, match="in-process"):
        Session.builder().engine("in_process")  # type: ignore[arg-type]


def test_stores_are_reached_by_the_options_of_the_builder() -> None:
    before = known_settings()
    try:
        options = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_REGION": "eu-central-1"}
        with Session.builder().engine("in-process").storage_options(options).get_or_create():
            assert known_settings()["fs.s3a.access.key"] == "id"
        with Session.in_process():
            assert known_settings()["fs.s3a.endpoint.region"] == "eu-central-1"
    finally:
        use(before)
