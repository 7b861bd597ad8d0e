"""History, then live, on Spark: the history runs in this process, and its savepoint is what Spark begins from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, ParquetSink, Session, SideOutputLateEventHandler, count, sum
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, at bigint, amount bigint"
ROWS: list[list[dict[str, Any]]] = [
    [{"user": f"u{i % 3}", "at": (n * 40 + i) * 1_000, "amount": i} for i in range(60)] for n in range(4)
]


def test_history_and_live_on_spark_are_one_long_run(session: Session, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    for n, rows in enumerate(ROWS[:2]):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"archive/{n}.parquet")
        os.utime(tmp_path / f"archive/{n}.parquet", (n + 1, n + 1))
    live, sender = session.memory_stream(SCHEMA, name="orders", spool=str(tmp_path / "spool"))
    late = [{"user": "u0", "at": 30_000, "amount": 1}, {"user": "u1", "at": 70_000, "amount": 1}]
    for rows in (*ROWS[2:], late):
        sender.send(rows)

    def job(stream: Any) -> Any:
        return stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count(), sum("amount").alias("total"))

    query = session.start(
        [job(live).to(ParquetSink(str(tmp_path / "out")))],
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap={"orders": session.read_parquet(str(tmp_path / "archive"), max_files_per_batch=1)},
        until=100_000,
        batches=Batches.available_now(),
    )
    query.await_termination()
    driver = Driver(job(stream_of(SCHEMA)))
    sent = [*ROWS[:2], [r for r in ROWS[2] if r["at"] >= 100_000], ROWS[3]]
    sent[:2] = [[r for r in rows if r["at"] < 100_000] for rows in sent[:2]]
    want = [row for rows in sent for row in driver.send(rows).results.to_pylist()]
    order = [("window_end", "ascending"), ("user", "ascending")]
    assert pq.read_table(tmp_path / "out").sort_by(order).to_pylist() == sorted(
        want, key=lambda r: (r["window_end"], r["user"])
    )
    assert not (tmp_path / "checkpoint-history").exists()


@pytest.mark.slow
@pytest.mark.two_tasks
def test_a_changed_plan_on_spark_is_rebuilt_from_an_archive(session: Session, tmp_path: Path) -> None:
    """The savepoint is of Spark, in several buckets; the aggregate and the output that are new come from files."""
    (tmp_path / "archive").mkdir()
    for n, rows in enumerate(ROWS[:2]):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"archive/{n}.parquet")
        os.utime(tmp_path / f"archive/{n}.parquet", (n + 1, n + 1))
    live, sender = session.memory_stream(SCHEMA, name="orders")

    def windows(stream: Any, size: int) -> Any:
        return stream.watermark("at", 0).key_by("user").tumbling_window(size)

    old = [windows(live, 60_000).agg(count()).named("main").to(MemorySink())]
    query = session.start(old, checkpoint=str(tmp_path / "old"))
    for rows in ROWS[:2]:
        sender.send(rows)
        query.process_all_available()
    path = query.savepoint(str(tmp_path / "savepoint"))
    query.stop()
    for rows in ROWS[2:]:
        sender.send(rows)
    main, more = MemorySink(), MemorySink()

    def outputs(stream: Any) -> list[Any]:
        return [
            windows(stream, 60_000).agg(sum("amount").alias("total"), count()).named("main").to(main, name="main"),
            windows(stream, 90_000).agg(count()).named("more").to(more, name="more"),
        ]

    session.start(
        outputs(live),
        checkpoint=str(tmp_path / "new"),
        savepoint=path,
        bootstrap={"orders": session.read_parquet(str(tmp_path / "archive"), max_files_per_batch=1)},
        batches=Batches.available_now(),
    ).await_termination()
    drivers = [Driver(output.stream) for output in outputs(stream_of(SCHEMA))]
    steps = [[driver.send(rows).results.to_pylist() for rows in ROWS] for driver in drivers]
    wanted = [row for rows in steps[0][2:] for row in rows], [row for rows in steps[1] for row in rows]
    for sink, want in zip((main, more), wanted, strict=True):
        assert sorted(map(str, read(sink))) == sorted(map(str, want))


def test_a_capture_of_the_last_batches_on_spark_is_that_of_the_engine_in_process(session: Session, tmp_path: Path) -> None:
    """It runs again in a driver, with the same rows, results, late rows and state; an empty batch of Spark's has no rows."""

    def job(stream: Any, late: Any) -> Any:
        rows = stream.watermark("at", 0).key_by("user").tumbling_window(60_000)
        return rows.agg(count(), sum("amount").alias("total")).with_late_event_handler(SideOutputLateEventHandler(late))

    sent = (*ROWS[:3], [{"user": "u0", "at": 30_000, "amount": 1}], [{"user": "u1", "at": 400_000, "amount": 1}])
    given = list[tuple[Any, ...]]()
    with Session.in_process() as process:
        for engine, name in ((session, "spark"), (process, "process")):
            live, sender = engine.memory_stream(SCHEMA, name="orders")
            sink, late = MemorySink(), MemorySink()
            plan, home = job(live, late), str(tmp_path / name)
            query = plan.start(sink, checkpoint=home, keep_batches=4)
            for rows in sent:
                sender.send(rows)
                query.process_all_available()
            query.stop()
            last = 3 if name == "spark" else 2  # on Spark the windows of the last rows fire in an empty batch
            path = engine.capture(home, plan, str(tmp_path / f"capture {name}"), last=last)
            driver = Driver.from_capture(path, job(stream_of(SCHEMA), MemorySink()))
            begun, outs = driver.state().drop_columns(["last_update"]).to_pylist(), []
            while (output := driver.next_batch()) is not None:
                outs.append(output)
            results = [row for output in outs for row in output.results.to_pylist()]
            dropped = [row for output in outs for row in output.late.to_pylist()]
            assert sorted(map(str, results)) == sorted(map(str, read(sink)[len(read(sink)) - len(results) :]))
            assert dropped == read(late)[len(read(late)) - len(dropped) :]
            given.append((begun, results, dropped))
    of_spark, of_process = ([sorted(map(str, part)) for part in parts] for parts in given)
    assert of_spark == of_process
    assert all(of_spark)


def read(sink: MemorySink) -> list[dict[str, Any]]:
    """All rows of a sink."""
    table = sink.table()
    return [] if table is None else table.to_pylist()
