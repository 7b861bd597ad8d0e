"""Parity of a log and an archive: equal for every cut under the row clock, and each difference with its rows."""

from __future__ import annotations

import builtins
import datetime as dt
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import ColumnError, PlanError, Session, SourceError, avg, collect_list, count, sum
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.features import FeatureLog, check_parity, training_set
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing import Driver, stream_of
from tests.features.logs import KINDS
from tests.in_process.test_archives import SCHEMA as ROWS
from tests.in_process.test_archives import TABLES, expected, topic, written

SCHEMA = "card string, at bigint, amount bigint"
ARROW = stream_of(SCHEMA).schema


def on_arrival(payments: Stream, clock: RowsClock = "row") -> ResultStream:
    timed = payments.watermark("at", "5 s", clock=clock).key_by("card")
    return timed.lookback_window("1 min", emit="arrival", with_row=True).agg(count(), sum("amount").alias("spent"))


def windows(payments: Stream, clock: RowsClock = "row") -> ResultStream:
    timed = payments.watermark("at", "5 s", clock=clock).key_by("card")
    return timed.tumbling_window("10 s").agg(count(), collect_list("amount").alias("amounts"))


def windows_of_batches(payments: Stream) -> ResultStream:
    return windows(payments, "batch")


def payments(seed: int, most: int = 400) -> list[dict[str, Any]]:
    """Return payments that come up to 20 s late, so that many are late for a lag of 5 s."""
    rng = random.Random(seed)
    times = [(at, at + rng.randrange(20_000)) for at in sorted(rng.randrange(300_000) for _ in range(most))]
    ordered = sorted(times, key=lambda one: one[1])
    return [{"card": rng.choice(["a", "b", None]), "at": at, "amount": rng.randrange(9)} for at, _ in ordered]


def cut(rows: Sequence[dict[str, Any]], sizes: Iterator[int]) -> list[list[dict[str, Any]]]:
    """Return rows in batches of some sizes."""
    batches, begin = [], 0
    while begin < len(rows):
        size = next(sizes)
        batches.append(list(rows[begin : begin + size]))
        begin += size
    return batches


def any_size(seed: int, most: int) -> Iterator[int]:
    rng = random.Random(seed)
    while True:
        yield rng.randint(1, most)


def served(pipeline: Any, rows: Sequence[dict[str, Any]], folder: Path, sizes: Iterator[int]) -> tuple[FeatureLog, int]:
    """Return the log of a query that took rows in batches of some sizes, and how many of them were late."""
    log = FeatureLog(folder, key="card", at="at" if pipeline is on_arrival else "window_end")
    driver = Driver(pipeline(stream_of(SCHEMA)), sink=log)
    late = [driver.send(batch).late.num_rows for batch in cut(rows, sizes)]
    return log, builtins.sum(late)


def files(rows: Sequence[dict[str, Any]], folder: Path, size: int) -> list[str]:
    folder.mkdir()
    names = []
    for number, batch in enumerate(cut(rows, iter([size] * len(rows)))):
        pq.write_table(pa.Table.from_pylist(batch, ARROW), name := f"{folder}/{number:06d}.parquet")
        names.append(name)
    return names


@pytest.mark.one_in(6)
@pytest.mark.parametrize("pipeline", [on_arrival, windows])
@pytest.mark.parametrize("seed", range(3))
def test_f9_an_archive_of_one_file_and_of_many_gives_what_was_served(tmp_path: Path, pipeline: Any, seed: int) -> None:
    rows = payments(seed)
    log, late = served(pipeline, rows, tmp_path / "log", any_size(seed, 30))
    assert late > 20
    for size in (len(rows), 37, 1):
        parity = check_parity(pipeline, files(rows, tmp_path / f"files of {size}", size), log)
        assert parity.equal and parity.counts == {**parity.counts, "same": log.read().num_rows}, str(parity)


def test_f9_by_the_clock_of_batches_the_archive_gives_other_windows(tmp_path: Path) -> None:
    rows = payments(1)
    log, _ = served(windows_of_batches, rows, tmp_path / "log", any_size(1, 30))
    parity = check_parity(windows_of_batches, pa.Table.from_pylist(rows, ARROW), log)
    assert parity.counts["changed"] > 10


def test_f5_a_row_that_was_late_online_is_named_where_the_archive_takes_it(tmp_path: Path) -> None:
    rows = [{"card": "a", "at": at, "amount": 1} for at in (1_000, 20_000, 12_000, 40_000)]
    log, late = served(windows_of_batches, rows, tmp_path / "log", any_size(0, 1))
    assert late == 1
    parity = check_parity(windows_of_batches, pa.Table.from_pylist(rows, ARROW), log)
    assert parity.counts == {"same": 2, "changed": 0, "only_log": 0, "only_archive": 1}
    assert parity.rows.select(["card", "window_end", "change", "count_archive"]).to_pylist() == [
        {"card": "a", "window_end": 20_000, "change": "only archive", "count_archive": 1}
    ]
    explained = parity.why().rows
    assert explained.select(["row", "event_time", "fate"]).to_pylist() == [
        {"row": 2, "event_time": "1970-01-01T00:00:12Z", "fate": "in"}
    ]
    one_by_one = check_parity(windows_of_batches, files(rows, tmp_path / "files", 1), log)
    assert one_by_one.equal
    labels = pa.table({"card": ["a"], "decided": [20_000]})
    served_then = training_set(labels, {"card": log}, key="card", at="decided", as_of="event", allow_exact=True)
    assert served_then["count"].to_pylist() == [1] and served_then["card_at"].to_pylist() == [10_000]


def test_a_changed_value_is_one_difference_and_shows_both(tmp_path: Path) -> None:
    rows = [{"card": "a", "at": at, "amount": 1} for at in (1_000, 2_000, 3_000)]
    log, _ = served(on_arrival, rows, tmp_path / "log", any_size(0, 2))
    rows[1]["amount"] = 5
    parity = check_parity(on_arrival, pa.Table.from_pylist(rows, ARROW), log)
    assert parity.counts == {"same": 1, "changed": 2, "only_log": 0, "only_archive": 0}
    assert parity.rows.select(["at", "spent_log", "spent_archive"]).to_pylist() == [
        {"at": 2_000, "spent_log": 2, "spent_archive": 6},
        {"at": 3_000, "spent_log": 3, "spent_archive": 7},
    ]
    assert parity.why(1).rows["fate"].to_pylist() == ["in", "in", "in"]
    assert "why in the archive:" in str(parity)
    with pytest.raises(PlanError, match="number"):
        parity.why(2)


def test_equal_rows_of_one_key_and_time_are_counted(tmp_path: Path) -> None:
    rows = [{"card": "a", "at": 1_000, "amount": amount} for amount in (1, 2, 2)]
    log = FeatureLog(tmp_path, key="card", at="at")
    Driver(stream_of(SCHEMA), sink=log).send(rows)
    parity = check_parity(lambda stream: stream, pa.Table.from_pylist(rows[1:], ARROW), log)
    assert parity.counts == {"same": 2, "changed": 0, "only_log": 1, "only_archive": 0}
    assert parity.rows["amount_log"].to_pylist() == [1]
    with pytest.raises(PlanError, match="the rows of a feature are not known"):
        parity.why()


def test_what_waits_fires_where_the_input_ended(tmp_path: Path) -> None:
    rows = [{"card": "a", "at": 1_000, "amount": 1}]
    log = FeatureLog(tmp_path, key="card", at="window_end")
    driver = Driver(windows(stream_of(SCHEMA)), sink=log)
    driver.send(rows)
    driver.close()
    table = pa.Table.from_pylist(rows, ARROW)
    assert check_parity(windows, table, log).counts["only_log"] == 1
    assert check_parity(windows, table, log, close=True).equal


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"card": "a", "at": 1_000, "amount": 1}], ARROW)
    log = FeatureLog(tmp_path / "log", key="card", at="at")
    Driver(on_arrival(stream_of(SCHEMA)), sink=log).send(rows)
    wrong: Any = "spend"
    with pytest.raises(PlanError, match="takes the function that builds the pipeline"):
        check_parity(wrong, rows, log)
    with pytest.raises(PlanError, match="takes a feature log"):
        check_parity(on_arrival, rows, wrong)
    with pytest.raises(PlanError, match="an archive is files or a table"):
        check_parity(on_arrival, tmp_path, log)
    with pytest.raises(PlanError, match="the archive is empty"):
        check_parity(on_arrival, [], log)
    with pytest.raises(SourceError, match="an archive cannot be read"):
        check_parity(on_arrival, [tmp_path / "none.parquet"], log)
    with pytest.raises(ColumnError, match="the features lack a column of the log"):
        check_parity(windows, rows, log)
    with pytest.raises(PlanError, match="there is no difference"):
        check_parity(on_arrival, rows, log).why()


def test_an_archive_of_a_topic_is_read_lane_by_lane(tmp_path: Path) -> None:
    """What a query over three partitions served is recomputed from files in any order."""
    rows = topic(5)
    written(rows, tmp_path / "archive", 5)

    def spend(payments: Stream) -> ResultStream:
        timed = payments.watermark("at", "2 s", clock="row").key_by("partition", "user")
        return timed.lookback_window("10 s", emit="arrival", with_row=True).agg(count())

    with Session.in_process() as session:
        archive = session.read_parquet(tmp_path / "archive", lane="partition", order="offset")
        log = FeatureLog(tmp_path / "log", key=["partition", "user"], at="at")
        query = spend(archive).start(log)
        query.process_all_available()
        assert query.progress.late["late"] == expected(rows)[1]
        query.stop()
        parity = check_parity(spend, archive, log)
        assert parity.equal and parity.counts["same"] == log.read().num_rows > 50
        in_turn = check_parity(spend, pa.concat_tables(map(pq.read_table, sorted((tmp_path / "archive").iterdir()))), log)
        assert not in_turn.equal
        memory, _ = session.memory_stream(SCHEMA)
        with pytest.raises(PlanError, match="an archive that is a stream ends, and says its lanes"):
            check_parity(spend, memory, log)


@pytest.mark.parametrize("kind", TABLES)
def test_an_archive_in_a_table_is_recomputed_lane_by_lane(tmp_path: Path, kind: str) -> None:
    rows, (write, read) = topic(5), TABLES[kind]
    halves = [pa.Table.from_pylist(some, ROWS) for some in (rows[40:80], rows[80:], rows[:40])]
    lanes: dict[str, Any] = {"lane": "partition", "order": "offset"}

    def spend(payments: Stream) -> ResultStream:
        timed = payments.watermark("at", "2 s", clock="row").key_by("partition", "user")
        return timed.lookback_window("10 s", emit="arrival", with_row=True).agg(count())

    with Session.in_process() as session:
        archive = read(session, **write(tmp_path / "archive", halves), **lanes)
        written(rows, tmp_path / "files", 5)
        log = FeatureLog(tmp_path / "log", key=["partition", "user"], at="at")
        query = spend(session.read_parquet(tmp_path / "files", **lanes)).start(log)
        query.process_all_available()
        query.stop()
        parity = check_parity(spend, archive, log)
        assert parity.equal and parity.counts["same"] == log.read().num_rows > 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_of_each_kind_keeps_values_of_many_types(tmp_path: Path, kind: str) -> None:
    ddl = (
        "card string, at timestamp, v smallint, tiny tinyint, day date, raw binary, x float, price decimal(8,2), "
        "place struct<a: int, b: string>, named map<string, int>, many array<smallint>"
    )
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)

    def payment(n: int) -> dict[str, Any]:
        nested = {"place": {"a": n, "b": None}, "named": {"k": n}, "many": [n, None]}
        plain = {"v": n, "tiny": n, "day": noon.date(), "raw": b"\0", "x": n / 3, "price": None}
        return {"card": "a", "at": noon + dt.timedelta(seconds=n), **plain, **nested}

    def spent(payments: Stream) -> ResultStream:
        timed = payments.watermark("at", "5 s", clock="row").key_by("card")
        before = timed.lookback_window("1 h", emit="arrival", with_row=True)
        return before.agg(sum("v").alias("spent"), avg("x").alias("mean"), collect_list("tiny").alias("tinies"))

    log, rows, schema = KINDS[kind](tmp_path / "log"), [payment(n) for n in (1, 3, 2, 9)], stream_of(ddl).schema
    driver = Driver(spent(stream_of(schema)), sink=log)
    for row in rows:
        driver.send([row])
    parity = check_parity(spent, pa.Table.from_pylist(rows, schema), log)
    assert parity.equal and parity.counts["same"] == 4
