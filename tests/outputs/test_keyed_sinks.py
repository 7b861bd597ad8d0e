"""Sinks with a key: a table holds what the results come to, or the plan is refused with a hint by which it does."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import Batches, DeltaSink, KafkaSink, PlanError, ResultStream, Session, count, sum, table_view, top_k, udf
from krishiv_py.connectors import TransactionalSink, net_changes
from krishiv_py.connectors.publish import OutputOf, TablePublisher
from krishiv_py.testing import Driver, stream_of
from tests.outputs.keyed import DDL, KEYS, MODES, STEPS, WINDOWS, Row, TableInMemory, folded, keyed, run_in_process, sends
from tests.tables.stores import delta_rows, iceberg, iceberg_rows

CASES = sorted(itertools.product(WINDOWS, MODES, STEPS))


def plan_of(window: str, mode: str, steps: str) -> ResultStream:
    return STEPS[steps](MODES[mode](WINDOWS[window](keyed(stream_of(DDL)))))


def final_rows(window: str, steps: str, batches: Sequence[Sequence[Row]]) -> list[str]:
    """What the windows come to, as results that are given once."""
    driver = Driver(plan_of(window, "final", steps))
    steps_ = [*(driver.send(batch) for batch in batches), driver.close()]
    return sorted(str(row) for step in steps_ for row in step.results.to_pylist())


def by_driver(plan: ResultStream, sink: TransactionalSink, batches: Sequence[Sequence[Row]]) -> None:
    driver = Driver(plan, sink=sink)
    for batch in batches:
        driver.send(batch)
        if isinstance(sink, TableInMemory) and "op" in plan.schema.names and sink.log:
            assert sink.rows == folded(sink.log)  # after every batch
    driver.close()


@pytest.mark.one_in(11)
@pytest.mark.parametrize("chosen", range(24))
def test_a_table_holds_the_results_or_the_plan_is_refused(chosen: int) -> None:
    """Kinds of windows, emissions, steps and keys; the same steps over final results decide."""
    choice = random.Random(chosen)
    window, mode, steps = CASES[(chosen * 677 + 13) % len(CASES)]
    plan, batches = plan_of(window, mode, steps), sends(chosen, 24)
    expected = final_rows(window, steps, batches)
    keys = [key for key in KEYS if set(key) <= set(plan.schema.names)]
    accepted = 0
    for key in choice.sample(keys, min(4, len(keys))):
        sink = TableInMemory(key)
        try:
            by_driver(plan, sink, batches)
        except PlanError as refused:
            followed = _following(str(refused), window, mode, steps, key)
            if followed is None:
                continue
            plan_again, sink = followed
            by_driver(plan_again, sink, batches)
        assert sink.rows == expected, (window, mode, steps, key)
        accepted += 1
    assert accepted or steps in ("items", "without the user", "without the bounds")


def _following(refusal: str, window: str, mode: str, steps: str, key: list[str]) -> tuple[ResultStream, TableInMemory] | None:
    """The plan and the sink that the hints of a refusal lead to; None where the steps themselves have to change."""
    for _ in range(4):
        named = re.search(r"Hint: pass key=(\[.*\])", refusal)
        if named is not None:
            key = json.loads(named[1])
        elif 'write .emit("retractions")' in refusal:
            mode = "early retractions" if mode.startswith("early") else "retractions"
        else:
            assert "in the last .select" in refusal or "number the items" in refusal, refusal
            return None
        plan = plan_of(window, mode, steps)
        try:
            Driver(plan, sink=TableInMemory(key))
        except PlanError as again:
            refusal = str(again)
        else:
            return plan, TableInMemory(key)
    raise AssertionError(f"the hints lead nowhere: {refusal}")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("window", "mode"), [("tumbling", "early retractions"), ("session", "retractions"), ("hopping", "updates")]
)
def test_a_query_in_process_fills_the_table(workers: int, window: str, mode: str) -> None:
    steps = "none" if mode == "updates" else "having"
    batches, sink = sends(workers, 30), TableInMemory(["user", "shop", "window_start"])
    run_in_process(workers, lambda rows: STEPS[steps](MODES[mode](WINDOWS[window](keyed(rows)))), sink, batches)
    assert sink.rows == final_rows(window, steps, batches)
    wrong = TableInMemory(["window_start"])
    with pytest.raises(PlanError, match=r"does not tell results apart.*Hint: pass key=\[.window_start., .user., .shop.\]"):
        run_in_process(workers, lambda rows: MODES[mode](WINDOWS[window](keyed(rows))), wrong, [])


def test_a_query_on_spark_is_compared_with_its_key(session: Session, tmp_path: Path) -> None:
    stream, _ = session.memory_stream(DDL)
    per_user = MODES["updates"](WINDOWS["tumbling"](keyed(stream)))
    with pytest.raises(PlanError, match=r"does not tell results apart"):
        per_user.start(DeltaSink(tmp_path / "t", key=["window_start"]))
    with pytest.raises(PlanError, match=r"do not withdraw rows"):
        per_user.filter("total > 3").start(DeltaSink(tmp_path / "t", key=["user", "shop", "window_start"]))
    with pytest.raises(PlanError, match=r"early results of a snapshot do not withdraw"):
        early = MODES["final"](WINDOWS["tumbling"](keyed(stream))).with_pane().filter("total > 3")
        early_sink = DeltaSink(tmp_path / "t", key=["user", "shop", "window_start"])
        early.start(early_sink, batches=Batches.available_now(snapshot=True))
    assert not session.queries


LOG = pa.schema([("k", pa.string()), ("f", pa.float64()), ("n", pa.int64()), ("op", pa.string())])
Change = tuple[str | None, float | None, int, bool]
names, floats = st.sampled_from(["a", "b", None]), st.sampled_from([0.0, -0.0, None])
changes_ = st.lists(st.lists(st.tuples(names, floats, st.integers(0, 9), st.booleans()), max_size=9), max_size=5)


def logs_of(batches: Sequence[Sequence[Change]]) -> tuple[list[pa.Table], list[dict[tuple[Any, Any], int]]]:
    """A valid change log in batches, and the table after each: rows that come, change and go."""
    table: dict[tuple[Any, Any], int] = {}
    logs, tables = list[pa.Table](), list[dict[tuple[Any, Any], int]]()
    for batch in batches:
        lines: list[tuple[Any, ...]] = []
        for name, number, value, stays in batch:
            place = name, None if number is None else 0.0
            if place in table:
                lines.append((name, number, table.pop(place), "-U" if stays else "-D"))
            if stays:
                lines.append((name, number, value, "+U" if lines and lines[-1][3] == "-U" else "+I"))
                table[place] = value
        logs.append(pa.table([list(c) for c in zip(*lines, strict=True)] if lines else [[]] * 4, schema=LOG))
        tables.append(dict(table))
    return logs, tables


class Topic:
    """The records of a compacted topic, as the sink writes them."""

    def __init__(self) -> None:
        self.records: dict[bytes, Any] = {}

    def write(self, messages: Any) -> None:
        for value, key, _ in messages:
            self.records.pop(key, None) if value is None else self.records.update({key: json.loads(value)})

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def topic_of(sink: KafkaSink, monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr("krishiv_py.connectors.kafka.sink.Writer", lambda *_: topic)
    return topic


@settings(max_examples=25, deadline=None)
@given(changes_)
def test_a_topic_and_a_table_hold_what_a_log_comes_to(batches: list[list[Change]]) -> None:
    logs, tables = logs_of(batches)
    sink = KafkaSink("t", bootstrap_servers="nowhere:9", key=["k", "f"], upsert=True)
    own, output = TableInMemory(["k", "f"]), OutputOf("q", "a query", "results", LOG)
    with pytest.MonkeyPatch.context() as patched:
        topic = topic_of(sink, patched)
        publishers = [TablePublisher(sink, output), TablePublisher(own, output)]
        for number, (log, table) in enumerate(zip(logs, tables, strict=True)):
            for publisher in publishers:
                publisher.publish(number, [log] if log.num_rows else [], is_replay=False)
            assert {(r["k"], r["f"]): r["n"] for r in topic.records.values()} == table
            assert {(r["k"], r["f"]): r["n"] for r in own.table.values()} == table
    if logs:
        whole = pa.concat_tables(logs)
        assert {(r["k"], r["f"]): r["n"] for r in table_view(whole, ["k", "f"]).to_pylist()} == tables[-1]


@pytest.mark.parametrize("seed", range(3))
def test_delta_and_iceberg_hold_what_a_log_comes_to(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)

    def change() -> Change:
        name, number = choice.choice(["a", "b", None]), choice.choice([0.0, -0.0, None])
        return name, number, choice.randrange(9), choice.random() < 0.6

    logs, tables = logs_of([[change() for _ in range(5)] for _ in range(4)])
    sinks: list[tuple[TransactionalSink, Callable[[], list[Row]]]] = [
        (DeltaSink(tmp_path / "t", key=["k", "f"]), lambda: delta_rows(tmp_path / "t")),
        (iceberg(tmp_path, "t", ["k", "f"]), lambda: iceberg_rows(tmp_path, "t")),
    ]
    for sink, held in sinks:
        publisher = TablePublisher(sink, OutputOf("q", "a query", "results", LOG))
        sink.check("results", LOG)
        for number, (log, table) in enumerate(zip(logs, tables, strict=True)):
            publisher.publish(number, [log], is_replay=False)
            assert {(r["k"], r["f"]): r["n"] for r in held()} == table, sink.title


CITIES = pa.table({"user": ["ann", "ann", "bob"], "city": ["Pune", "Goa", "Goa"]})
USERS = stream_of(DDL).watermark("at", 0).key_by("user")
COUNTED = USERS.tumbling_window(10).agg(count().alias("n"), sum("amount").alias("total"))
KEY = 'pass key=["user", "window_start"]'
whoever = udf("string")(lambda user: user)


def with_id(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"user": batch["user"], "window_start": batch["window_start"], "id": batch["user"]})


@pytest.mark.parametrize(
    ("plan", "key"),
    [
        (COUNTED, ["user", "window_end"]),
        (COUNTED.with_column("id", "sha2(concat(user, '|', CAST(window_start AS STRING)), 256)"), ["id"]),
        (COUNTED.with_column("since", "CAST(window_start AS STRING)"), ["user", "since"]),
        (COUNTED.filter("user = 'ann' AND n > 1"), ["window_start"]),
        (COUNTED.with_column("name", whoever("user")), ["name", "window_start"]),
        (COUNTED.map_batches(with_id, "user string, window_start bigint, id string"), ["id"]),
        (COUNTED.select("user", "window_time", "n"), ["user", "window_time"]),
        (COUNTED.lookup_join(CITIES, on="user"), ["user", "window_start", "city"]),
        (COUNTED.lookup_join(CITIES.slice(1), on="user"), ["user", "window_start"]),
        (COUNTED.lookup_join(CITIES, on="user", how="semi"), ["user", "window_start"]),
        (COUNTED.drop_duplicates("user", within=10), ["user", "window_start"]),
        (COUNTED.key_by("user").tumbling_window(20).agg(sum("n")), ["user", "window_start"]),
        (stream_of(DDL).select("user", "amount"), ["user"]),
        (stream_of(DDL).watermark("at", 0).drop_duplicates("user", "at", within=10), ["user"]),
        (COUNTED.emit("updates").with_pane(), ["user", "window_start", "pane_index"]),
        (COUNTED.accumulation("discarding").with_pane(), ["user", "window_start", "pane_index"]),
        (stream_of(DDL).watermark("at", 0).tumbling_window(10).agg(count()), ["window_start"]),
        (USERS.lookback_window(10, with_row=True).agg(count()), ["shop"]),
    ],
)
def test_keys_that_tell_results_apart_are_taken(plan: ResultStream, key: list[str]) -> None:
    Driver(plan, sink=TableInMemory(key))


@pytest.mark.parametrize(
    ("plan", "key", "text"),
    [
        (
            COUNTED,
            ["user"],
            f"without window_start): .* {KEY}; who reads the table picks the newest of each user by window_start",
        ),
        (COUNTED, ["user", "n"], KEY),
        (COUNTED.with_column("day", "window_start / 1000"), ["user", "day"], 'pass key=["user", "day", "window_start"]'),
        (COUNTED.select("n", ends="window_end", who="user"), ["who"], 'pass key=["who", "ends"]'),
        (COUNTED.select("user", "n"), ["user"], f"keep window_start in the last .select(...) of the pipeline, and {KEY}"),
        (COUNTED.drop_duplicates("user", within=10), ["window_start"], 'pass key=["window_start", "user"]'),
        (COUNTED.key_by("user").tumbling_window(20).agg(sum("n")), ["user"], KEY),
        (USERS.tumbling_window(10).agg(top_k(2, "amount")).unnest("top_k_amount"), ["user", "window_start"], 'rank="place"'),
        (COUNTED.lookup_join(CITIES, on="user"), ["user", "window_start"], 'pass key=["user", "window_start", "city"]'),
        (COUNTED.lookup_join(CITIES, on="user").drop("city"), ["user", "window_start"], "keep a column that tells the rows"),
        (COUNTED.emit("updates"), ["user", "window_start", "n"], "n in `key`): a result with another value"),
        (COUNTED.accumulation("discarding"), ["user", "window_start"], "name pane_index in `key`"),
        (COUNTED.emit("retractions").filter("op = '+I'"), ["user", "window_start"], "leave the condition out"),
        (COUNTED.emit("retractions").with_pane(), ["user", "window_start", "pane_index"], KEY),
        (
            USERS.session_window(10).agg(count()).emit("updates"),
            ["user", "window_start"],
            'a session that grows or merges would leave its old row behind. Hint: write .emit("retractions")',
        ),
        (
            stream_of(DDL)
            .watermark("at", 0)
            .key_by("user")
            .lookback_window(10, with_row=True)
            .agg(count().alias("n"))
            .emit("updates")
            .filter("n > 1"),
            ["shop"],
            "a result that no longer passes would leave its old row behind",
        ),
    ],
)
def test_keys_and_steps_that_lose_rows_are_refused_with_what_to_write(plan: ResultStream, key: list[str], text: str) -> None:
    pattern = ".*".join(map(re.escape, text.split(".* ")))
    with pytest.raises(PlanError, match=pattern):
        Driver(plan, sink=TableInMemory(key))


def test_sql_is_compared_with_its_key_as_well() -> None:
    text = "SELECT user, window_start AS since, sum(amount) AS total "
    text += "FROM TUMBLE(TABLE rows, DESCRIPTOR(at), INTERVAL '10' SECOND) "
    text += "GROUP BY user, window_start, window_end HAVING sum(amount) > 3"
    with Session.in_process() as session:
        stream, _ = session.memory_stream(DDL)
        session.register("rows", stream.watermark("at", 0))
        having = session.sql(text)
        assert isinstance(having, ResultStream)
        Driver(having.emit("retractions"), sink=TableInMemory(["user", "since"]))
        with pytest.raises(PlanError, match="without window_start"):
            Driver(having, sink=TableInMemory(["user"]))
        with pytest.raises(PlanError, match=r"would leave its old row behind.*emit..retractions"):
            Driver(having.emit("updates"), sink=TableInMemory(["user", "since"]))


def test_early_results_of_a_snapshot_stay_in_no_table() -> None:
    sink = TableInMemory(["user", "window_start"])
    driver = Driver(COUNTED.filter("total > 3"), sink=sink)
    with pytest.raises(PlanError, match="early results of a snapshot do not withdraw rows"):
        driver.snapshot()
    Driver(COUNTED.with_pane(), sink=sink).snapshot()


def test_two_outputs_are_each_compared(tmp_path: Path) -> None:
    good, bad = TableInMemory(["user", "window_start"]), TableInMemory(["user"])
    named = [COUNTED.to(good, name="whole"), COUNTED.filter("n > 1").select("user", "n", "window_start").to(bad, name="part")]
    with pytest.raises(PlanError, match=r"`key` of TableInMemory does not tell results apart.*without window_start"):
        Driver(named)


def test_a_key_that_is_no_list_of_columns_is_refused() -> None:
    sink = TableInMemory(["user"])
    sink.key = SimpleNamespace()  # type: ignore[assignment]
    with pytest.raises(PlanError, match="`key of TableInMemory` is not a list of columns"):
        Driver(COUNTED, sink=sink)


def test_a_view_does_not_lose_a_result_in_silence() -> None:
    log = pa.table({"user": ["ann", "bob"], "window_end": [9, 9], "n": [1, 2], "op": ["+I", "+I"]})
    assert table_view(log).num_rows == 2
    with pytest.raises(kv.OperatorError, match="does not tell results apart"):
        table_view(log, ["window_end"])
    assert net_changes([log], ["user"]).put.num_rows == 2
