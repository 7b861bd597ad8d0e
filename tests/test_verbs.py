"""Verbs of other libraries, and steps out of order, answer with what to write; to a type checker they do not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pytest

import krishiv_py as kv
from krishiv_py import foreign
from krishiv_py.api.sender import Sender
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import MethodError, OrderError
from krishiv_py.missing import answers
from krishiv_py.plan.running import Progress
from krishiv_py.runtime.query import RunningQuery
from krishiv_py.testing import Driver, stream_of


def rows() -> Any:
    return stream_of("user string, amount bigint, at bigint")


def timed() -> Any:
    return rows().watermark("at", 0)


def windowed() -> Any:
    return timed().key_by("user").tumbling_window(10)


def results() -> Any:
    return windowed().agg(kv.count())


CALLS: Final[list[tuple[Callable[[], Any], str, str]]] = [
    (rows, "crossJoin", "interval_join("),
    (rows, "groupBy", ".key_by("),
    (rows, "group_by", ".key_by("),
    (rows, "distinct", "distinct"),
    (rows, "window", ".watermark("),
    (rows, "drop_duplicates", ".watermark("),
    (lambda: rows().key_by("user"), "drop_duplicates", ".watermark("),
    (windowed, "drop_duplicates", "before a window"),
    (rows, "withWatermark", ".watermark("),
    (rows, "where", ".filter("),
    (rows, "withColumn", ".with_column("),
    (rows, "count", ".agg(count("),
    (rows, "orderBy", "ascending"),
    (rows, "union", "session.union"),
    (rows, "allowed_lateness", ".watermark("),
    (rows, "collect_with_aggs", ".watermark("),
    (rows, "writeStream", ".start("),
    (lambda: rows().key_by("user"), "collect", ".watermark("),
    (lambda: timed().key_by("user"), "collect", "_window("),
    (rows, "show", "ConsoleSink"),
    (lambda: rows().key_by("user"), "filter", "before .key_by"),
    (lambda: rows().key_by("user"), "merge", ".join("),
    (lambda: rows().key_by("user"), "key_by", "keyed already"),
    (lambda: timed().key_by("user"), "filter", "before .key_by("),
    (timed, "processing_time", "either .watermark("),
    (windowed, "processing_time", "either .watermark("),
    (results, "processing_time", "time of their windows"),
    (timed, "map_batches", "before .watermark("),
    (timed, "where", "write .filter(...), before .key_by"),
    (timed, "watermark", "once"),
    (timed, "withWatermark", "once"),
    (timed, "group_by", ".key_by("),
    (timed, "time_window", "_window("),
    (timed, "leftJoin", "interval_join("),
    (windowed, "join", "interval_join("),
    (windowed, "latest", "before .watermark("),
    (rows, "cdc", ".from_changelog("),
    (timed, "sum", ".agg(sum("),
    (timed, "dropDuplicates", ".drop_duplicates("),
    (windowed, "filter", "before .watermark("),
    (windowed, "key_by", "before the window"),
    (windowed, "groupBy", "before the window"),
    (windowed, "tumbling_window", "one window"),
    (lambda: timed().lookback_window(5), "filter", "before .watermark("),
    (results, "crossJoin", "interval_join("),
    (results, "groupBy", ".key_by("),
    (results, "where", ".filter("),
    (results, "withWatermark", ".watermark("),
    (results, "matches", ".lookback_window("),
    (results, "toPandas", ".to_pandas()"),
    (results, "writeStream", ".start("),
]


@pytest.mark.parametrize(("stage", "verb", "way"), CALLS, ids=[f"{i} {c[1]}" for i, c in enumerate(CALLS)])
def test_a_verb_people_try_answers_with_the_way(stage: Callable[[], Any], verb: str, way: str) -> None:
    with pytest.raises(OrderError, match=re.escape(f".{verb}()")) as caught:
        getattr(stage(), verb)("x", y=1)
    assert way in str(caught.value).partition("Hint: ")[2]


def test_the_ways_that_are_reported_can_be_gone() -> None:
    """Methods the hints name are there."""
    stages = [rows(), rows().key_by("user"), timed(), windowed(), timed().lookback_window(5), results()]
    public = (
        {name for stage in stages for name in dir(stage)}
        | {*dir(kv.Session), *dir(kv.Query), *dir(kv.Batches), *dir(kv.Expr), *dir(kv.Pattern)}
        | set(kv.__all__)
    )
    public |= {"slice", "to_pylist", "tumbling"}  # of an Arrow table, of krishiv_py.windows
    for stage in stages:
        for name, said in answers(type(stage)).items():
            assert set(re.findall(r"\.(\w+)\(", said)) <= public, (name, said)


def keyed() -> Any:
    return rows().key_by("user")


@pytest.mark.parametrize("stage", [rows, keyed, timed, windowed, results], ids=lambda stage: str(stage.__name__))
def test_a_stage_has_the_names_that_it_can_do(stage: Callable[[], Any]) -> None:
    """``dir``, completion and ``hasattr`` say the same."""
    made = stage()
    others = answers(type(made))
    assert "groupBy" in others and "write_stream" in others
    for name in others:
        assert not hasattr(made, name) and not hasattr(type(made), name) and name not in dir(made)
        with pytest.raises(AttributeError):
            getattr(made, name)
    assert getattr(made, "groupBy", None) is None


def test_a_name_that_nobody_has_answers_with_the_nearest() -> None:
    with pytest.raises(MethodError, match=r"'watermrk' .*a Stream.*did you mean \.watermark"):
        _ = rows().watermrk
    with pytest.raises(MethodError, match=r"'zzz' .*Hint: dir"):
        _ = windowed().zzz


OF_OTHERS: Final = (
    "write_parquet map_with_state top_n head limit map_async broadcast connect write_csv write_delta to_topic",
    "foreachBatch mapGroupsWithState transformWithState repartition cache pivot rolling shift value_counts resample",
    "map_values flatMapValues filterNot selectKey groupByKey peek suppress windowby stateful_map fold_window",
    "collect_window inspect redistribute key_on tumbling_count_window set_timestamp to_dicts sink_parquet",
    "with_columns drop_nulls fill_null with_row_index unpivot assign dropna fillna nlargest sort_values iterrows",
    "groupby pivot_table melt execute_and_collect side_output_late_data get_side_output rebalance",
    "assignTimestampsAndWatermarks keyBy countWindowAll coGroup evictor printSchema withColumnsRenamed",
    "dropDuplicatesWithinWatermark unionByName createOrReplaceTempView awaitTermination toTable write_postgres",
    "exceptAll flat_map_with_state map_rows_async write_foo read_postgres scan_csv to_something pipe sample union",
    "observe outputMode",
)


@pytest.mark.parametrize("stage", [rows, keyed, timed, lambda: timed().key_by("user"), windowed, results])
@pytest.mark.parametrize("names", OF_OTHERS)
def test_names_of_other_systems_are_answered_on_every_stage_and_not_by_likeness(stage: Callable[[], Any], names: str) -> None:
    made = stage()
    for name in names.split():
        if not hasattr(made, name):
            with pytest.raises(OrderError) as caught:
                getattr(made, name)
            said = str(caught.value)
            assert "did you mean" not in said and "dir(...)" not in said and "* " not in said.replace(" * ", ""), said


def test_a_step_by_another_name_is_answered_with_a_call_that_runs() -> None:
    stream = stream_of("id string, user string, amount bigint, price double, n bigint, items array<string>, old string")
    for name, ours in ((name, call) for call, names in foreign.STEPS.items() for name in names.split()):
        call = answers(type(stream))[name].removeprefix("write ")
        assert call.startswith(f".{ours}")
        if "..." not in call:
            assert isinstance(eval(f"stream{call}", {"stream": stream, "function": lambda batch: batch}), Stream), call


@pytest.mark.parametrize("name", sorted(foreign.ways("session")))
def test_a_session_answers_names_of_others(name: str) -> None:
    tried = name.replace("*", "anything")
    if not hasattr(kv.Session, tried):
        with pytest.raises(MethodError) as caught:
            getattr(kv.Session.in_process(), tried)
        assert "did you mean" not in str(caught.value) and "dir(...)" not in str(caught.value)


def test_a_slip_of_the_pen_is_not_taken_for_a_name_of_others() -> None:
    with pytest.raises(MethodError, match=r"did you mean \.read_parquet"):
        _ = kv.Session.in_process().read_parqet  # type: ignore[attr-defined]
    with pytest.raises(MethodError, match=r"did you mean \.to_dataframe"):
        _ = results().to_datafrme


def query() -> Any:
    with kv.Session.in_process() as session:
        stream, _ = session.memory_stream("user string, at bigint")
        return stream.watermark("at", 0).tumbling_window(10).agg(kv.count()).start(kv.MemorySink())


RUNNING: Final[list[tuple[Callable[[], Any], str, str]]] = [
    (lambda: Driver(results()), "restart", "driver.restarted()"),
    (lambda: Driver(results()), "late_rows", "driver.send(rows).late"),
    (lambda: Driver(results()), "results", "driver.send(rows).results"),
    (query, "late", "query.progress.late"),
    (query, "restart", "checkpoint=..."),
    (query, "kill", "query.stop()"),
    (query, "runId", "query.id"),
    (kv.Session.in_process, "close", "session.stop()"),
    (kv.Session.in_process, "createDataFrame", "session.memory_stream(schema)"),
    (kv.Session.in_process, "execute_sql", "session.sql(...)"),
    (lambda: kv.Session.in_process().memory_stream("at bigint")[1], "put", "sender.send("),
    (lambda: kv.Session.in_process().memory_stream("at bigint")[1], "finish", "sender.close()"),
    (kv.MemorySink, "rows", "sink.table()"),
    (kv.MemorySink, "to_pandas", "sink.table().to_pandas()"),
]


@pytest.mark.parametrize(("made", "name", "way"), RUNNING, ids=[c[1] for c in RUNNING])
def test_what_runs_answers_with_the_way_too(made: Callable[[], Any], name: str, way: str) -> None:
    one = made()
    assert not hasattr(one, name) and name not in dir(one)
    with pytest.raises(MethodError, match=re.escape(f"has no attribute '{name}'")) as caught:
        getattr(one, name)
    assert way in str(caught.value).partition("Hint: ")[2]


def test_a_property_that_fails_is_not_taken_for_a_name_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(driver: Driver) -> int:
        return driver.counters.no_such_thing  # type: ignore[attr-defined,no-any-return]

    monkeypatch.setattr(Driver, "watermark_us", property(fails))
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = Driver(results()).watermark_us


@pytest.mark.parametrize("kind", [Driver, RunningQuery, Sender, kv.MemorySink, kv.Session], ids=lambda kind: str(kind.__name__))
def test_the_ways_of_what_runs_can_be_gone(kind: type) -> None:
    kinds = (Driver, RunningQuery, Progress, Stream, Sender, kv.MemorySink, kv.Session, kv.Query)
    public = {name for one in kinds for name in dir(one)}
    for name, said in answers(kind).items():
        assert set(re.findall(r"\b(?:driver|query|session|sender|sink|progress)\.(\w+)\b(?!_?\.\.)", said)) <= public, (
            name,
            said,
        )
