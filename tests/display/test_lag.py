"""Lateness profiles against the driver and against plain Python, and wrong calls."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import LatenessProfile, Session, count, lateness_profile
from krishiv_py.display import plots
from krishiv_py.errors import ColumnError, DurationError, PlanError, SchemaError
from krishiv_py.testing import Driver, stream_of

UTC = dt.timezone.utc
TIMES = st.lists(st.integers(-100, 100), min_size=1, max_size=60)


def driven(times: list[int], cuts: list[int], lag: int, window: int = 7) -> tuple[int, list[int]]:
    """Return how many rows a driver finds late, and the rows it holds before each batch fires."""
    driver = Driver(stream_of("at bigint").watermark("at", lag).tumbling_window(window).agg(count()))
    late, held, waiting = 0, [], 0
    for begin, end in itertools.pairwise(cuts):
        out = driver.send([{"at": t} for t in times[begin:end]])
        waiting += end - begin - out.late.num_rows
        late += out.late.num_rows
        held.append(waiting)
        waiting -= sum(out.results["count"].to_pylist())
    return late, held


@given(times=TIMES, lags=st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_row_by_row_the_driver_loses_as_many_rows_and_holds_as_many(times: list[int], lags: list[int]) -> None:
    profile = lateness_profile([{"at": t} for t in times], "at", lags=lags, window=7)
    for lag, late, held in zip(lags, profile.table["late"].to_pylist(), profile.table["held"].to_pylist(), strict=True):
        assert (late, held) == ((actual := driven(times, list(range(len(times) + 1)), lag))[0], max(actual[1]))


@given(data=st.data(), times=TIMES, lag=st.integers(0, 60))
def test_in_batches_too(data: st.DataObject, times: list[int], lag: int) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=len(times), max_size=len(times)))
    cuts = [0, *(int(c) for c in np.cumsum(sizes) if c < len(times)), len(times)]
    arrival = np.repeat(np.arange(len(cuts) - 1) * 1_000, np.diff(cuts)).tolist()
    rows = [{"at": t, "came": a} for t, a in zip(times, arrival, strict=True)]
    mixed = [rows[n] for n in np.random.default_rng(1).permutation(len(rows))]
    whole = lateness_profile(mixed, "at", arrival="came", batch="1 ms", window=7, lags=[lag])
    late, held = driven(times, cuts, lag)
    assert (whole.table["late"].to_pylist(), whole.table["held"].to_pylist()) == ([late], [max(held)])


@given(times=TIMES, share=st.floats(0, 1))
def test_the_smallest_lag_is_enough_and_a_smaller_one_is_not(times: list[int], share: float) -> None:
    rows = [{"at": t} for t in times]
    lag = lateness_profile(rows, "at").smallest_lag(share)
    actual = lateness_profile(rows, "at", lags=[lag]).table["late"].to_pylist()[0]
    assert actual <= share * len(times) + 1e-6
    ms = int(lateness_profile(rows, "at", lags=[lag]).table["lag_us"].to_pylist()[0]) // 1_000
    if ms:
        assert lateness_profile(rows, "at", lags=[ms - 1]).table["late"].to_pylist()[0] > share * len(times) - 1e-6


def test_delays_are_from_the_end_of_a_window_to_the_row_that_lets_it_fire() -> None:
    def moment(second: float) -> dt.datetime:
        return dt.datetime.fromtimestamp(second, UTC)

    rows = [{"at": moment(t), "came": moment(t + delay)} for t, delay in [(1, 0), (5, 1), (11, 2), (13, 2), (25, 3)]]
    profile = lateness_profile(rows, "at", arrival="came", window="10 s", lags=[0, "3 s", "1 h"])
    assert profile.table["delay_us"].to_pylist() == [(3 + 8) * 500_000, (5 + 8) * 500_000, None]
    assert "result after the end" in str(profile) and "5.5 s" in str(profile) and "6.5 s" in str(profile)


def test_values_of_a_column_one_by_one() -> None:
    rows = [{"at": t, "source": s} for t, s in [(0, "a"), (50, "a"), (10, "b"), (40, "b"), (60, None), (20, "b")]]
    profile = lateness_profile(rows, "at", by="source")
    assert profile.groups is not None
    assert profile.groups.to_pylist() == [
        {"source": "b", "rows": 3, "behind": 3, "most_us": 40_000, "own_us": 20_000},
        {"source": "a", "rows": 2, "behind": 0, "most_us": 0, "own_us": 0},
        {"source": None, "rows": 1, "behind": 0, "most_us": 0, "own_us": 0},
    ]


def test_rows_without_a_time_and_no_rows() -> None:
    rows = pa.table({"at": pa.array([5, None, 3, 2**62], pa.int64())})
    profile = lateness_profile(rows, "at", window=10)
    assert (profile.rows, profile.without_time, profile.smallest_lag()) == (2, 2, "2 ms")
    assert "2 without an event time" in str(profile)
    empty = lateness_profile(rows.slice(0, 0), "at", window=10, by="at")
    assert (empty.rows, empty.smallest_lag(), empty.table["late"].to_pylist()) == (0, "0 s", [0])
    assert plots.lags(empty).axes


def test_a_profile_shows_itself() -> None:
    profile = lateness_profile([{"at": t} for t in (5, 3, 9, 1)], "at")
    assert "<table>" in profile._repr_html_() and "late rows" in profile._repr_html_()
    figure = profile.plot()
    assert figure.axes[0].get_ylabel() == "late rows (%)"


def test_texts_say_when_rows_arrived_in_any_zone() -> None:
    rows = [("12:00:00Z", "12:00:03"), ("14:00:09+02:00", "12:00:09.5"), ("12:00:04.25", "12:00:10Z")]
    texts = [{"at": f"2026-01-01T{happened}", "came": f"2026-01-01T{came}"} for happened, came in rows]
    profile = lateness_profile(texts, "at", arrival="came", lags=[0])
    assert (profile.smallest_lag(), profile.table["delay_us"].to_pylist()) == ("4.75 s", [3_000_000])
    with pytest.raises(PlanError, match="1 nulls"):
        lateness_profile([*texts, {"at": "2026-01-01T12:00:00", "came": None}], "at", arrival="came")


@pytest.mark.parametrize(("unit", "word"), [(1, "seconds"), (1_000_000, "microseconds")])
def test_numbers_of_another_unit_are_noticed(unit: int, word: str) -> None:
    rows = [{"at": 1_767_268_800 * unit}]
    with pytest.warns(RuntimeWarning, match=f"the numbers are probably {word}, .* Hint: pass milliseconds"):
        lateness_profile(rows, "at")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rows": 5}, PlanError, "it is of type int"),
    ({"rows": [{"at": 1}, (2,)]}, PlanError, "item 1 is of type tuple"),
    ({"rows": [{"at": 1}, {"at": "x"}]}, PlanError, "values of 'at' are not of one type"),
    ({"rows": pd.Series([1])}, SchemaError, r"series.to_frame\("),
    ({"time": "nowhere"}, ColumnError, "nowhere"),
    ({"time": "name"}, ColumnError, "'name' cannot be read as times .got: row 0: "),
    ({"time": None}, PlanError, "time"),
    ({"arrival": "name"}, ColumnError, "'name' cannot be read as times"),
    ({"arrival": "share"}, PlanError, "arrived"),
    ({"arrival": "gone"}, ColumnError, "gone"),
    ({"by": 3}, PlanError, "by"),
    ({"batch": "1 s"}, PlanError, "arrival"),
    ({"batch": -1, "arrival": "at"}, DurationError, "batch"),
    ({"window": 0}, DurationError, "window"),
    ({"lags": "5 s"}, PlanError, "lags"),
    ({"lags": [-1]}, DurationError, "lags"),
]


@pytest.mark.parametrize(("wrong", "kind", "words"), WRONG, ids=lambda value: str(value) if isinstance(value, dict) else None)
def test_wrong_calls_say_what_is_wrong(wrong: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        lateness_profile(**{"rows": [{"at": 1, "name": "x", "share": 0.5}], "time": "at", **wrong})


@pytest.mark.parametrize("share", [-0.1, 2, True, "0.5", float("nan")])
def test_a_share_is_a_number_from_0_to_1(share: Any) -> None:
    profile = lateness_profile([{"at": 1}], "at")
    assert isinstance(profile, LatenessProfile)
    with pytest.raises(PlanError, match="loses_at_most"):
        profile.smallest_lag(share)


ROWS = [{"at": t, "n": n, "came": n, "user": "ab"[n % 2]} for n, t in enumerate((5, 3, 9, 1, 9, 4))]


def bounded(rows: list[dict[str, Any]]) -> Any:
    session = Session.in_process()
    stream, sender = session.memory_stream("at bigint, n bigint, came bigint, user string")
    sender.send(rows)
    sender.close()
    return stream


def in_words(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "at": (dt.datetime.fromtimestamp(row["at"] / 1_000, UTC)).isoformat()} for row in rows]


FORMS: dict[str, Any] = {
    "objects": lambda rows: [dataclasses.make_dataclass("Row", row)(**row) for row in rows],
    "texts": in_words,
    "texts of a frame": lambda rows: pytest.importorskip("polars").DataFrame(in_words(rows)),
    "table": pa.Table.from_pylist,
    "batch": pa.RecordBatch.from_pylist,
    "reader": lambda rows: pa.RecordBatchReader.from_batches(
        (t := pa.Table.from_pylist(rows)).schema, t.to_batches(max_chunksize=2)
    ),
    "pandas": lambda rows: pytest.importorskip("pandas").DataFrame(rows),
    "polars": lambda rows: pytest.importorskip("polars").DataFrame(rows),
    "lazy frame": lambda rows: pytest.importorskip("polars").LazyFrame(rows),
    "bounded stream": bounded,
    "stream with a watermark": lambda rows: bounded(rows).watermark("at", 0),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_of_rows_gives_the_same_profile(form: str) -> None:
    mixed = [ROWS[n] for n in (3, 0, 5, 1, 4, 2)]
    actual = lateness_profile(FORMS[form](mixed), "at", order="n", by="user", window=5, lags=[0, 4])
    assert str(actual) == str(lateness_profile(ROWS, "at", by="user", window=5, lags=[0, 4])).replace("the rows", "'n'")
    assert actual.table["late"].to_pylist() == [3, 2]


def test_finer_times_than_microseconds_are_taken() -> None:
    rows = pa.table({"at": pa.array([5_000_000_123, 3_000_000_456], pa.timestamp("ns"))})
    assert lateness_profile(rows, "at").smallest_lag() == "2 s"


@given(times=TIMES, lag=st.integers(0, 60), data=st.data())
def test_rows_lost_and_windows_open_by_value_are_those_of_plain_python(times: list[int], lag: int, data: st.DataObject) -> None:
    users = data.draw(st.lists(st.sampled_from(["a", "b", None]), min_size=len(times), max_size=len(times)))
    rows: list[dict[str, Any]] = [{"at": t, "user": u} for t, u in zip(times, users, strict=True)]
    actual = lateness_profile(
        pa.table({"at": times, "user": pa.array(users, pa.string())}), "at", by="user", lags=[lag], window=7
    )
    newest, late, own, ahead = -(10**6), dict.fromkeys(users, 0), dict.fromkeys(users, 0), dict[Any, int]()
    driver = Driver(stream_of("at bigint, user string").watermark("at", lag).key_by("user").tumbling_window(7).agg(count()))
    opened, most_open, fired = set[Any](), 0, 0
    for row in rows:
        t, user = row["at"], row["user"]
        late[user] += t < newest - lag
        if t >= newest - lag:
            opened.add((user, t // 7))
        most_open = max(most_open, len(opened) - fired)
        fired += driver.send([row]).results.num_rows
        own[user] = max(own[user], ahead.get(user, t) - t)
        ahead[user], newest = max(ahead.get(user, t), t), max(newest, t)
    assert actual.groups is not None and actual.group_lags is not None
    assert dict(zip(actual.group_lags["user"].to_pylist(), actual.group_lags["late"].to_pylist(), strict=True)) == late
    own_us = {user: 1_000 * ms for user, ms in own.items()}
    assert dict(zip(actual.groups["user"].to_pylist(), actual.groups["own_us"].to_pylist(), strict=True)) == own_us
    assert actual.table["open"].to_pylist() == [most_open]


def test_without_a_window_the_delay_is_that_of_the_watermark() -> None:
    stamp = pa.timestamp("us", "UTC")
    rows = pa.table({"at": pa.array([0, 10, 20, 30], pa.int64()), "came": pa.array([1_000, 12_000, 23_000, 34_000], stamp)})
    profile = lateness_profile(rows, "at", arrival="came", lags=[0, 10, 100])
    assert profile.table["delay_us"].to_pylist() == [2_500, 13_000, None]
    assert "watermark after the time" in str(profile)


class FakeFrame:
    """A DataFrame of Spark, as far as it is looked at."""

    isStreaming = False  # noqa: N815  # Spark's name

    def toArrow(self) -> pa.Table:  # noqa: N802  # Spark's name
        return pa.Table.from_pylist(ROWS)


FakeFrame.__module__ = "pyspark.sql.classic.dataframe"


def test_a_dataframe_of_spark_needs_an_order() -> None:
    with pytest.raises(PlanError, match="no order"):
        lateness_profile(FakeFrame(), "at")
    assert lateness_profile(FakeFrame(), "at", order="n").table["late"].to_pylist()[0] == 3


@pytest.mark.parametrize(
    ("order", "words"),
    [({"order": "n", "arrival": "n"}, "both say"), ({"order": "m"}, "nulls"), ({"order": "list"}, "sorted")],
    ids=["both", "nulls", "lists"],
)
def test_an_order_that_says_nothing_is_refused(order: dict[str, str], words: str) -> None:
    rows = pa.table({"at": [1, 2], "n": [1, 2], "m": [None, 2], "list": [[1], [2]]})
    with pytest.raises(PlanError, match=words):
        lateness_profile(rows, "at", **order)
