"""Restarts: from the checkpoint, with the same output as without; refused when the plan changed."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    MemorySink,
    MultiSourceWatermarkSpec,
    ParquetSink,
    Session,
    SideOutputLateEventHandler,
    WatermarkSpec,
    count,
)
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.spark.setup.config import check_checkpoint
from krishiv_py.testing import Driver
from tests.spark.conftest import DDL, per_second, row, sorted_rows

pytestmark = pytest.mark.two_tasks


def test_a_restart_at_every_batch_changes_nothing(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    late = ParquetSink(str(tmp_path / "late"))
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(late))
    driver = Driver(per_second(stream))
    seeded = random.Random(7)
    expected, refused = [], []
    for step in range(5):
        query = plan.start(ParquetSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "checkpoint"))
        batch = [row(seeded.choice("abc"), step * 700 + seeded.randrange(-900, 900)) for _ in range(20)]
        sender.send(batch)
        step_out = driver.send(batch)
        query.process_all_available()
        query.stop()
        expected += sorted_rows(step_out.results)
        refused += step_out.late["at"].to_pylist()
    query = plan.start(ParquetSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "checkpoint"))
    sender.close()
    query.process_all_available()
    expected += sorted_rows(driver.close().results)
    assert sorted_rows(pq.read_table(tmp_path / "out")) == sorted(expected, key=repr)
    assert sorted(pq.read_table(tmp_path / "late")["at"].to_pylist()) == sorted(refused)
    assert refused, "the test would prove little without late rows"
    assert query.progress.rows == 100
    assert query.progress.late["late"] == len(refused)
    query.stop()


def test_a_query_killed_while_it_wrote_down_its_first_batch_begins(session: Session, tmp_path: Path) -> None:
    """Spark writes an entry of its log under another name first, and refuses to begin where such a file was left."""
    stream, sender = session.memory_stream(DDL)
    sender.send([row("a", 10), row("a", 5_000)])
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.6dfa2685-707e-4978-8209-c163a88e193b.tmp", "..0.6dfa2685-707e-4978-8209-c163a88e193b.tmp.crc"):
        (offsets / name).write_bytes(b"v1")
    query = per_second(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    try:
        query.process_all_available()
        assert len(sorted_rows(query.results())) == 1
    finally:
        query.stop()


def test_a_repeated_batch_replaces_its_files(session: Session, tmp_path: Path) -> None:
    """Takes the commit of the last batch away, as a crash before it would: the batch runs again."""
    stream, sender = session.memory_stream(DDL)
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(str(tmp_path / "late"))))
    checkpoint = tmp_path / "checkpoint"
    query = plan.start(ParquetSink(str(tmp_path / "out")), checkpoint=str(checkpoint))
    for batch in ([row("a", 10), row("a", 5_000)], [row("a", 20), row("b", 9_000)]):
        sender.send(batch)
        query.process_all_available()
    before = sorted_rows(pq.read_table(tmp_path / "out")), sorted_rows(pq.read_table(tmp_path / "late")), query.progress
    query.stop()
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    for commit in commits[-2:]:
        commit.unlink()
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    query = plan.start(ParquetSink(str(tmp_path / "out")), checkpoint=str(checkpoint))
    query.process_all_available()
    assert sorted_rows(pq.read_table(tmp_path / "out")) == before[0]
    assert sorted_rows(pq.read_table(tmp_path / "late")) == before[1]
    assert query.progress.counters == before[2].counters
    query.stop()


def test_a_file_noted_before_a_crash_is_a_batch_of_its_own_all_the_same(session: Session, tmp_path: Path) -> None:
    """Takes away all that was written after the source noted a file, as a crash between its log and the plan of the batch."""
    stream, sender = session.memory_stream(DDL)
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(str(tmp_path / "late"))))
    checkpoint = tmp_path / "checkpoint"
    batches = [row("a", 10)], [row("a", 5_000)], [row("a", 20), row("b", 9_000)]  # 20 is late only behind the batch of 5000
    sender.send(batches[0])
    query = plan.start(ParquetSink(str(tmp_path / "out")), checkpoint=str(checkpoint))
    query.process_all_available()
    before = {p.name for p in (checkpoint / "offsets").iterdir()}
    sender.send(batches[1])
    query.process_all_available()
    query.stop()
    for log in ("offsets", "commits"):
        for entry in (checkpoint / log).iterdir():
            if entry.name not in before:
                entry.unlink()
    assert (checkpoint / "sources" / "0" / "1").exists()
    sender.send(batches[2])
    query = plan.start(ParquetSink(str(tmp_path / "out")), checkpoint=str(checkpoint))
    sender.close()
    query.process_all_available()
    query.stop()
    driver = Driver(per_second(stream))
    outs = [*(driver.send(b) for b in batches), driver.close()]
    assert sorted_rows(pq.read_table(tmp_path / "out")) == sorted((r for o in outs for r in sorted_rows(o.results)), key=repr)
    assert pq.read_table(tmp_path / "late")["at"].to_pylist() == [20]


@pytest.mark.slow
def test_per_source_watermarks_survive_a_restart(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("source string, at bigint")
    lags = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(0))
    plan = stream.with_watermark(lags, "at", source_column="source").tumbling_window(10).agg(count())
    out = MemorySink()
    for batch, watermark in (([("a", 100), ("b", 50)], 50), ([("b", 80)], 80), ([("b", 200)], 100), ([("a", 150)], 150)):
        query = plan.start(out, checkpoint=str(tmp_path / "checkpoint"))
        sender.send([{"source": s, "at": t} for s, t in batch])
        query.process_all_available()
        assert query.progress.watermark_us == watermark * 1_000
        query.stop()
    assert query.progress.source_watermarks_us == {"a": 150_000, "b": 200_000}


def test_a_changed_plan_is_refused_by_name(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    sender.send([row("a", 1)])
    keyed = stream.watermark("at", 100).key_by("user")
    checkpoint = str(tmp_path / "checkpoint")
    query = keyed.tumbling_window(1_000).agg(count()).start(MemorySink(), checkpoint=checkpoint)
    query.process_all_available()  # another lag cannot go on from a batch that is not finished
    query.stop()
    with pytest.raises(CheckpointError, match="window size was 1 s and is 2 s"):
        keyed.tumbling_window(2_000).agg(count()).start(MemorySink(), checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="key 1 was user"):
        stream.watermark("at", 100).tumbling_window(1_000).agg(count()).start(MemorySink(), checkpoint=checkpoint)
    compatible = stream.watermark("at", 500).key_by("user").tumbling_window(1_000).agg(count().alias("n"))
    compatible.start(MemorySink(), checkpoint=checkpoint).stop()


def test_profiles_refuse_checkpoints_that_do_not_keep_their_promise(session: Session) -> None:
    with pytest.raises(PlanError, match="needs a checkpoint"):
        check_checkpoint("single-node-durable", None)
    with pytest.raises(PlanError, match="shared checkpoint"):
        check_checkpoint("distributed-durable", "/var/checkpoint")


@pytest.mark.slow
def test_streams_of_their_own_are_sources(session: Session, tmp_path: Path) -> None:
    """The slowest source holds the watermark; closing one source leaves it to the others."""
    streams, senders = {}, {}
    for name in ("a", "b"):
        streams[name], senders[name] = session.memory_stream("at bigint, n bigint")
    lags = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(10))
    plan = (
        session.union({"a": streams["a"].filter("n > 0"), "b": streams["b"]})
        .with_watermark(lags, "at", source_column="source")
        .key_by("source")
        .tumbling_window(10)
        .agg(count())
    )
    query = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    senders["a"].send([{"at": 5, "n": 1}, {"at": 100, "n": 1}, {"at": 900, "n": 0}])
    query.process_all_available()
    assert query.results().num_rows == 0
    senders["b"].send([{"at": 40, "n": 0}])
    query.process_all_available()
    assert query.progress.source_watermarks_us == {"a": 100_000, "b": 30_000}
    assert sorted_rows(query.results()) == [("a", 0, 10, 1)]
    senders["b"].close()
    query.process_all_available()
    assert query.progress.watermark_us == 100_000
    senders["a"].close()
    query.process_all_available()
    query.stop()
    assert (
        sorted_rows(query.results()) == sorted_rows(plan.collect()) == [("a", 0, 10, 1), ("a", 100, 110, 1), ("b", 40, 50, 1)]
    )
