"""Training sets: the named cases of features, and a plain reference over random logs."""

from __future__ import annotations

import datetime as dt
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ColumnError, PlanError, SourceError, count, sum
from krishiv_py.features import FeatureLog, buckets, training, training_set
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.features.logs import KINDS, SCHEMA, expected, log_of, row, streamed

LABELS = pa.schema([("card", pa.string()), ("decided", pa.int64())])


def labels(*times: int | None, card: str | None = "a") -> pa.Table:
    return pa.table({"card": [card] * len(times), "decided": times}, LABELS)


def values(wanted: pa.Table, log: FeatureLog, *, stream: bool = True, **options: Any) -> list[Any]:
    """Return the values of labels; as a stream they have the same."""
    logs, options = {"card": log}, {"key": "card", "at": "decided", **options}
    made = training_set(wanted, logs, **options)
    if stream:
        timed = made.filter(made["decided"].is_valid()).to_pylist()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = streamed(wanted, logs, wanted.num_rows, **options)
        assert sorted(given, key=repr) == sorted(timed, key=repr)
    spent: list[Any] = made["spent"].to_pylist()
    return spent


def test_f1_a_feature_of_exactly_the_time_of_the_label_counts_on_request(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(5, [row(10, 1)])])
    assert values(labels(10, 11), log) == [None, 1]
    assert values(labels(10, 11), log, allow_exact=True) == [1, 1]


def test_f2_a_correction_that_was_published_after_the_label_was_not_served(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)]), (31, [row(10, 2)])])
    assert values(labels(25, 31), log) == [1, 2]
    assert values(labels(25, 31), log, as_of="event") == [2, 2]


def test_f3_a_backfill_a_day_later_does_not_change_what_was_served(tmp_path: Path) -> None:
    served = [(12, [row(10, 1)]), (25, [row(20, 2)])]
    before = values(labels(15, 30), log_of(str(tmp_path / "one"), served))
    log = log_of(str(tmp_path / "two"), [*served, (86_400_000, [row(14, 7), row(29, 8)])])
    assert values(labels(15, 30), log) == before == [1, 2]
    assert values(labels(15, 30), log, as_of="event") == [7, 8]


@pytest.mark.parametrize("published", [12, 13])
def test_f4_of_two_rows_of_one_time_the_later_batch_counts(tmp_path: Path, published: int) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)]), (published, [row(10, 2)])])
    assert values(labels(20), log) == [2] == values(labels(20), log, as_of="event")


def test_f6_a_label_before_the_first_feature_has_none(tmp_path: Path) -> None:
    assert values(labels(3, None), log_of(str(tmp_path), [(4, [row(10, 1)])])) == [None, None]


def test_f7_labels_of_unknown_and_null_keys_stay(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1), row(10, 2, card=None)])])
    wanted = pa.table({"card": ["z", None, "a"], "decided": [20, 20, 20]}, LABELS)
    assert training_set(wanted, {"card": log}, key="card", at="decided").to_pylist() == [
        {"card": "z", "decided": 20, "spent": None, "card_at": None},
        {"card": None, "decided": 20, "spent": None, "card_at": None},
        {"card": "a", "decided": 20, "spent": 1, "card_at": 10},
    ]


def test_f8_an_age_of_exactly_the_limit_is_too_old(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)])])
    assert values(labels(19, 20, 21), log, max_age=10) == [1, None, None]
    finer = pa.table({"card": ["a", "a"], "decided": pa.array([19_999, 20_000], pa.timestamp("us", "UTC"))})
    assert values(finer, log, max_age=10) == [1, None]


def test_f13_labels_unsorted_and_twice_have_each_their_row(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)]), (22, [row(20, 2)])])
    assert values(labels(30, 15, 30, 5, 15), log) == [2, 1, 2, None, 1]


def test_f14_times_without_a_zone_are_utc_and_said_so(tmp_path: Path) -> None:
    at = dt.datetime(1970, 1, 1, 0, 0, 0, 10_000, dt.timezone.utc)
    log = log_of(str(tmp_path), [(12, [{"card": "a", "at": at, "spent": 1}])], "card string, at timestamp, spent bigint")
    wanted = pa.table({"card": ["a"], "decided": pa.array([20_000], pa.timestamp("us"))})
    with pytest.warns(RuntimeWarning, match="the times of labels have no time zone, and are taken as UTC"):
        assert values(wanted, log) == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zoned = pa.table({"card": ["a"], "decided": pa.array([20_000], pa.timestamp("us", "Asia/Kolkata"))})
        assert values(zoned, log) == [1]


def test_f15_rows_from_before_a_column_have_null_there(tmp_path: Path) -> None:
    log_of(str(tmp_path), [(12, [row(10, 1)])])
    more = "card string, at bigint, spent bigint, n bigint"
    log = log_of(str(tmp_path), [(22, [{**row(20, 2), "n": 5}])], more)
    result = training_set(labels(15, 30), {"card": log}, key="card", at="decided")
    assert result.select(["spent", "n"]).to_pylist() == [{"spent": 1, "n": None}, {"spent": 2, "n": 5}]


def test_f17_known_at_makes_a_set_as_it_was(tmp_path: Path) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)]), (31, [row(20, 2)])])
    assert values(labels(60), log, known_at=30) == [1] == values(labels(60), log, known_at=30, as_of="event")
    assert values(labels(60), log, known_at=31) == [2]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(30))
def test_a_loop_over_all_rows_gives_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    cards = ["a", "b", None, ""]
    now, batches = 0, []
    for _ in range(rng.randint(1, 12)):
        now += rng.choice([0, 1, 3, 20])
        some = [
            row(rng.choice([None, *range(-5, 40)]), rng.randrange(100), rng.choice(cards)) for _ in range(rng.randint(1, 6))
        ]
        batches.append((now, some))
    log = log_of(str(tmp_path), batches)
    wanted = [{"card": rng.choice([*cards, "z"]), "decided": rng.choice([None, *range(-6, 70)])} for _ in range(40)]
    table = pa.Table.from_pylist(wanted, LABELS)
    for as_of in ("served", "event"):
        for allow_exact in (False, True):
            for max_age, known_at in ((None, None), (rng.randint(1, 20), None), (None, rng.randint(0, 60))):
                options: dict[str, Any] = {"as_of": as_of, "allow_exact": allow_exact, "max_age": max_age, "known_at": known_at}
                assert values(table, log, stream=rng.random() < 0.2, **options) == expected(wanted, batches, **options), options


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [1, 40])
def test_f16_of_a_large_log_one_bucket_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at_once: int
) -> None:
    rng, clock, log = random.Random(at_once), ManualClock(), KINDS[kind](tmp_path / "log")
    cards = [*(f"card {n}" for n in range(30)), None, ""]
    driver = Driver(stream_of(SCHEMA), sink=log, clock=clock)
    for now in range(0, 200, 40):
        clock.set(now)
        driver.send([row(rng.randrange(200), rng.randrange(100), rng.choice(cards)) for _ in range(60)])
    wanted = pa.table({"card": [rng.choice(cards) for _ in range(200)], "decided": [rng.randrange(250) for _ in range(200)]})
    whole = training_set(wanted, {"card": log}, key="card", at="decided")
    most = list[int]()
    readable = training._readable

    def counted(features: pa.Table, *arguments: Any, **options: Any) -> pa.Table:
        most.append(features.num_rows)
        return readable(features, *arguments, **options)

    monkeypatch.setattr(buckets, "_ROWS_IN_MEMORY", at_once)
    monkeypatch.setattr(training, "_readable", counted)
    assert training_set(wanted, {"card": log}, key="card", at="decided").equals(whole)
    assert len(most) == buckets.BUCKETS and max(most) < 300 // 5
    shops = wanted.set_column(0, "card", pa.array(range(200)))
    with pytest.raises(ColumnError, match="the keys of labels and log have other types"):
        training_set(shops, {"card": log}, key="card", at="decided")


def test_whole_numbers_of_any_width_are_in_one_bucket() -> None:
    keys = [pa.array([1, -5, None, 2**30], type_) for type_ in (pa.int32(), pa.int64())]
    assert len({tuple(buckets.bucket_of_rows(pa.table({"k": key}), ["k"])) for key in keys}) == 1


def test_several_logs_and_keys_of_other_types(tmp_path: Path) -> None:
    cards = log_of(str(tmp_path / "cards"), [(12, [row(10, 1)])])
    shops = FeatureLog(str(tmp_path / "shops"), key="shop", at="seen")
    clock = ManualClock()
    clock.set(11)
    driver = Driver(stream_of("shop bigint, seen bigint, sold double"), sink=shops, clock=clock)
    driver.send([{"shop": 7, "seen": 9, "sold": 2.5}])
    wanted = pa.table({"card": ["a"], "shop": pa.array([7], pa.int32()), "decided": [20], "fraud": [True]})
    result = training_set(wanted, {"card": cards}, key="card", at="decided")
    result = training_set(result, {"shop": shops}, key="shop", at="decided", as_of="event")
    assert result.to_pylist() == [
        {"card": "a", "shop": 7, "decided": 20, "fraud": True, "spent": 1, "card_at": 10, "sold": 2.5, "shop_at": 9}
    ]


REFUSED: Sequence[tuple[dict[str, Any], type[Exception], str]] = (
    ({"as_of": "now"}, PlanError, "as_of"),
    ({"at": "when"}, ColumnError, "no column 'when'"),
    ({"key": ["card", "decided"]}, PlanError, "labels and the log 'card' have other keys"),
    ({"labels": [1]}, PlanError, "labels are a table"),
    ({"labels": pa.table({"card": ["a"], "decided": ["x"]})}, ColumnError, "'decided' cannot be event time"),
    ({"labels": pa.table({"card": [True], "decided": [1]})}, ColumnError, "the keys of labels and log have other types"),
    ({"labels": pa.table({"card": ["a"], "decided": [1], "spent": [1]})}, ColumnError, "a column of one name"),
    ({"logs": {}}, PlanError, "feature logs by name"),
    ({"logs": {"card": "path"}}, PlanError, "feature logs by name"),
)


@pytest.mark.parametrize(("given", "error", "text"), REFUSED)
def test_what_does_not_go_together_is_refused(tmp_path: Path, given: dict[str, Any], error: type[Exception], text: str) -> None:
    log = log_of(str(tmp_path), [(12, [row(10, 1)])])
    call: dict[str, Any] = {"labels": labels(20), "logs": {"card": log}, "key": "card", "at": "decided", **given}
    with pytest.raises(error, match=text):
        training_set(**call)


def test_a_folder_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no feature log"):
        values(labels(20), FeatureLog(str(tmp_path), key="card", at="at"))


def test_f15_a_pipeline_that_has_got_a_column_says_where_it_is_not_whole(tmp_path: Path) -> None:
    log = FeatureLog(tmp_path / "log", key="card", at="window_end")

    def windows(**calls: Any) -> Any:
        keyed = stream_of("card string, at bigint, amount bigint").watermark("at", 0).key_by("card")
        return keyed.tumbling_window("10 s").agg(count(), completeness=bool(calls), **calls).named("spent")

    first = Driver(windows(), sink=log)
    first.send([{"card": "a", "at": at, "amount": 1} for at in (1_000, 12_000)])
    then = Driver(windows(spent=sum("amount")), sink=log, savepoint=first.savepoint(str(tmp_path / "savepoint")))
    then.send([{"card": "a", "at": at, "amount": 2} for at in (13_000, 25_000, 38_000)])
    wanted = labels(10_500, 20_500, 30_500, 40_500)
    found = training_set(wanted, {"card": log}, key="card", at="decided", as_of="event")
    assert found.select(["count", "spent", "complete"]).to_pylist() == [
        {"count": 1, "spent": None, "complete": None},
        {"count": 2, "spent": None, "complete": False},
        {"count": 1, "spent": 2, "complete": True},
        {"count": 1, "spent": 2, "complete": True},
    ]
