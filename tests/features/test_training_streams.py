"""Training sets of labels that are a stream, in sessions: logs that grow meanwhile, restarts, workers, bounded runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    CheckpointError,
    ColumnError,
    KrishivError,
    MemorySink,
    OrderError,
    PlanError,
    Session,
    SideOutputLateEventHandler,
)
from krishiv_py.features import FeatureLog, training_set
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.features.logs import KINDS, SCHEMA, log_of, row, streamed, write

LABELS = "id bigint, card string, decided bigint"
TABLE = pa.schema([("id", pa.int64()), ("card", pa.string()), ("decided", pa.int64())])
WAYS: dict[str, dict[str, Any]] = {
    "served": {},
    "served, exact, no older than 30": {"allow_exact": True, "max_age": 30},
    "event": {"as_of": "event", "lag": 40},
    "event, known at 250": {"as_of": "event", "lag": 40, "known_at": 250},
}


def _batches(seed: int) -> list[tuple[int, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return batches with the time of the clock, feature rows up to 40 ms out of order, and labels up to 20."""
    rng = random.Random(seed)
    cards, ids = ["a", "b", "c", None], iter(range(10**6))
    return [
        (
            now,
            [row(rng.randint(now - 40, now), rng.randrange(1_000), rng.choice(cards)) for _ in range(rng.randint(1, 8))],
            [
                {"id": next(ids), "card": rng.choice([*cards, "z"]), "decided": rng.randint(now - 20, now)}
                for _ in range(rng.randint(0, 8))
            ],
        )
        for now in range(100, 400, 25)
    ]


def _by_id(table: pa.Table | None) -> list[dict[str, Any]]:
    return [] if table is None else table.sort_by("id").to_pylist()


def _check(session: Session, folder: Path, kind: str, way: str, seed: int) -> None:
    """Let a log and labels grow; labels have what the batch gives, and those that nothing has passed wait."""
    log, options, batches, now = KINDS[kind](folder / "log"), {"key": "card", "at": "decided", **WAYS[way]}, _batches(seed), 0
    session.use_clock(lambda: now * 1_000)
    features, of_features = session.memory_stream(SCHEMA, name="features")
    labels, of_labels = session.memory_stream(LABELS, name="labels")
    sink, sent = MemorySink(), list[dict[str, Any]]()
    writing = training = None
    for number, (now, some, wanted) in enumerate(batches):  # noqa: B007  # the clock reads `now`
        writing = writing or features.start(log, checkpoint=folder / "features")
        of_features.send(some)
        writing.process_all_available()
        if number % 4 == 0:
            if training is not None:
                training.stop()
            plan = training_set(labels.watermark("decided", 20), {"card": log}, **options)
            training = plan.start(sink, checkpoint=folder / "training")
        assert training is not None
        if wanted:
            of_labels.send(wanted)
        sent += wanted
        training.process_all_available()
    assert writing is not None and training is not None
    writing.stop()
    training.stop()
    given = _by_id(sink.table())
    options.pop("lag", None)
    every = _by_id(training_set(pa.Table.from_pylist(sent, TABLE), {"card": log}, **options))
    passed = {r["id"] for r in given}
    assert given == [r for r in every if r["id"] in passed]
    newest = batches[-1][0] - 80
    assert {r["id"] for r in sent if r["decided"] < newest} <= passed < {r["id"] for r in sent}
    assert any(r["spent"] is not None for r in given)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "workers"), [("parquet", 1), ("parquet", 3), ("delta", 1), ("iceberg", 1)])
def test_labels_have_what_the_batch_gives(tmp_path: Path, kind: str, workers: int, way: str, seed: int) -> None:
    with Session.in_process(workers=workers) as session:
        _check(session, tmp_path, kind, way, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bounded_run_reads_what_is_there(tmp_path: Path, kind: str) -> None:
    log = KINDS[kind](tmp_path / "log")
    labels = pa.table({"id": [0, 1, 2], "card": ["a", "a", "z"], "decided": [25, 500, 30]}, TABLE)
    (tmp_path / "labels").mkdir()
    pq.write_table(labels, tmp_path / "labels" / "a.parquet")
    write(log, [(12, [row(10, 1)]), (31, [row(20, 2)])])
    with Session.in_process() as session:
        timed = session.read_parquet(tmp_path / "labels").watermark("decided", 0)
        given = training_set(timed, {"card": log}, key="card", at="decided").collect()
    assert _by_id(given) == training_set(labels, {"card": log}, key="card", at="decided").to_pylist()
    assert _by_id(given)[1]["spent"] == 2


def test_several_logs_and_keys_of_another_place(tmp_path: Path) -> None:
    cards, shops = log_of(str(tmp_path / "cards"), [(12, [row(10, 1)])]), FeatureLog(tmp_path / "shops", key="shop", at="seen")
    write(shops, [(11, [{"shop": 7, "seen": 9, "sold": 2.5}])], "shop int, seen bigint, sold double")
    renamed = FeatureLog(tmp_path / "shops", key="shop", at="seen")
    wanted = pa.table({"n": [1], "card": ["a"], "decided": [20]})
    logs = {"one": cards, "two": log_of(str(tmp_path / "two"), [(14, [{"card": "a", "at": 13, "risk": 5}])], RISK)}
    given = streamed(wanted, logs, key="card", at="decided")
    assert given == training_set(wanted, logs, key="card", at="decided").to_pylist()
    assert given == [{"n": 1, "card": "a", "decided": 20, "spent": 1, "one_at": 10, "risk": 5, "two_at": 13}]
    of_shops = pa.table({"decided": [20], "shop": [7]})
    assert streamed(of_shops, {"shop": renamed}, key="shop", at="decided") == [
        {"decided": 20, "shop": 7, "sold": 2.5, "shop_at": 9}
    ]


def test_a_label_waits_until_the_log_has_gone_past_it(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)])])
    driver = Driver(training_set(STREAM.watermark("decided", 0), {"card": log}, key="card", at="decided"))
    driver.send({"left": [{"id": 1, "card": "a", "decided": 15}, {"id": 2, "card": "a", "decided": 90}]})
    published = [log.read().set_column(3, "published_at", pa.array([us], pa.timestamp("us", "UTC"))) for us in (15_000, 15_001)]
    assert [driver.send({"right": rows}).results.num_rows for rows in published] == [0, 1]


def test_a_log_that_is_idle_holds_nobody_up(tmp_path: Path) -> None:
    log, clock = log_of(str(tmp_path), [(12, [row(10, 1)])]), ManualClock()
    plan = training_set(STREAM.watermark("decided", 0), {"card": log}, key="card", at="decided", idle_timeout="1 min")
    driver = Driver(plan, clock=clock)
    sent = driver.send({"right": log.read(), "left": [{"id": n, "card": "a", "decided": n} for n in (15, 90)]})
    clock.advance("2 min")
    given = [sent, driver.send({"left": [{"id": 91, "card": "a", "decided": 91}]}), driver.tick()]
    assert [row["id"] for step in given for row in step.results.to_pylist()] == [15, 90]


def test_rows_out_of_order_are_late_beyond_the_lag(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(100, [row(90, 1)]), (200, [row(20, 2)])])
    handler = SideOutputLateEventHandler(MemorySink())
    labels = STREAM.watermark("decided", 0).with_late_event_handler(handler)
    driver = Driver(training_set(labels, {"card": log}, key="card", at="decided", as_of="event", lag=50))
    rows = log.read().sort_by("published_at")
    driver.send({"right": rows.slice(0, 1), "left": [{"id": 1, "card": "a", "decided": 95}]})
    late = driver.send({"right": rows.slice(1)}).late.to_pylist()
    assert [(row["side"], row["spent"], row["reason"]) for row in late] == [("right", 2, "late")]


def test_f15_a_log_that_has_got_a_column_goes_on(tmp_path: Path) -> None:
    log, more = log_of(str(tmp_path / "log"), [(12, [row(10, 1)])]), f"{SCHEMA}, n bigint"
    labels = STREAM.watermark("decided", 0)
    first = Driver(training_set(labels, {"card": log}, key="card", at="decided"))
    first.send({"right": log.read(), "left": [{"id": 1, "card": "a", "decided": 15}]})
    write(log, [(22, [{**row(20, 2), "n": 5}])], more)
    plan, savepoint = (
        training_set(labels, {"card": log}, key="card", at="decided"),
        first.savepoint(str(tmp_path / "savepoint")),
    )
    then = Driver(plan, savepoint=savepoint)
    later = log.read().sort_by("published_at").slice(1)
    given = [then.send({"right": later, "left": [{"id": 2, "card": "a", "decided": 30}]}), then.close()]
    rows = [row for step in given for row in step.results.to_pylist()]
    assert [(row["id"], row["spent"], row["n"]) for row in rows] == [(1, 1, None), (2, 2, 5)]
    with pytest.raises(CheckpointError, match="allow_exact"):
        Driver(training_set(labels, {"card": log}, key="card", at="decided", allow_exact=True), savepoint=savepoint)


@pytest.mark.parametrize("as_of", ["served", "event"])
def test_with_the_row_clock_the_cut_of_labels_does_not_matter(tmp_path: Path, as_of: Literal["served", "event"]) -> None:
    log, labels = FeatureLog(tmp_path / "log", key="card", at="at"), tmp_path / "labels"
    labels.mkdir()
    write(log, [(now, [row(now - 5, now), row(now - 35, -now)]) for now in range(50, 300, 50)])
    rng, sets = random.Random(7), list[list[dict[str, Any]]]()
    rows = [{"id": n, "card": "a", "decided": 40 + 5 * n - rng.choice([0, 0, 60])} for n in range(40)]
    for size in (40, 7, 1):
        for old in labels.iterdir():
            old.unlink()
        for number in range(0, len(rows), size):
            pq.write_table(pa.Table.from_pylist(rows[number : number + size], TABLE), labels / f"{number:03}.parquet")
        with Session.in_process(clock="row") as session:
            timed = session.read_parquet(labels, max_files_per_batch=3).watermark("decided", 20)
            given = training_set(timed, {"card": log}, key="card", at="decided", as_of=as_of, lag=40).run()
        sets.append(_by_id(given.table))
        assert 0 < len(sets[-1]) < len(rows)
    assert sets[0] == sets[1] == sets[2]


STREAM = stream_of(LABELS)
RISK = "card string, at bigint, risk bigint"
REFUSED: Sequence[tuple[dict[str, Any], type[KrishivError], str]] = (
    ({"labels": STREAM}, OrderError, "labels that are a stream have a watermark over their time"),
    ({"labels": STREAM.watermark("id", 0)}, OrderError, "labels that are a stream have a watermark over their time"),
    ({"as_of": "event"}, PlanError, 'as_of="event" of a stream needs a lag'),
    ({"at": "when"}, ColumnError, "no column 'when'"),
    ({"key": "decided"}, ColumnError, "the keys of labels and log have other types"),
    ({"labels": stream_of(f"{LABELS}, spent bigint").watermark("decided", 0)}, ColumnError, "a column of one name"),
    ({"labels": pa.table({"card": ["a"], "decided": [1]}), "lag": 5}, PlanError, "lag is for labels that are a stream"),
)


@pytest.mark.parametrize(("given", "error", "text"), REFUSED)
def test_what_does_not_go_together_is_refused(tmp_path: Path, given: dict[str, Any], error: type[Exception], text: str) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)])])
    call: dict[str, Any] = {"labels": STREAM.watermark("decided", 0), "key": "card", "at": "decided", **given}
    with pytest.raises(error, match=text):
        training_set(logs={"card": log}, **call)
