"""The event time of results as a column of theirs, where no stage follows (SEMANTICS §7.1)."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

import pyarrow as pa
import pytest

from krishiv_py import ResultStream, SlidingWindows, col, count, max
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, collect, stream_of

T0 = dt.datetime(1970, 1, 1)
ROWS = [{"user": "ab"[n % 2], "at": 10 * n, "ts": T0 + dt.timedelta(seconds=n)} for n in range(8)]
ROWS_OF = stream_of("user string, at bigint, ts timestamp_ntz")


def per_user(column: str = "at", size: str | int = 40) -> ResultStream:
    return ROWS_OF.watermark(column, 0).key_by("user").tumbling_window(size).agg(count())


def first(stream: ResultStream) -> dict[str, Any]:
    table = collect([stream], ROWS)[0]
    assert table.schema.equals(stream.schema)
    return dict(table.to_pylist()[0])


def test_who_names_the_event_time_gets_it() -> None:
    counts = per_user()
    assert first(counts.select("user", "window_time")) == {"user": "a", "window_time": 39}
    assert first(counts.select("user", until="window_time + 1")) == {"user": "a", "until": 40}
    assert first(counts.rename(window_time="t").select("t", "count")) == {"t": 39, "count": 2}
    assert first(counts.select("user", "count").select("window_time")) == {"window_time": 39}
    assert first(counts.with_column("t", "window_time").drop("user", "window_end")) == {"window_start": 0, "count": 2, "t": 39}
    mapped = counts.select("user", "window_time").map_batches(lambda rows: rows)
    assert first(mapped.drop("window_time")) == {"user": "a"}
    assert first(mapped) == {"user": "a", "window_time": 39}


def test_who_reads_the_event_time_without_naming_it_does_not() -> None:
    counts = per_user()
    assert first(counts.filter("window_time > 50")) == {"user": "a", "window_start": 40, "window_end": 80, "count": 2}
    assert first(counts.filter(col("window_time") > 50).select("user")) == {"user": "a"}
    assert "window_time" not in counts.results().schema.names


def test_it_has_the_type_of_the_time_column() -> None:
    shown = per_user("ts", "4 seconds").select("window_time")
    assert first(shown) == {"window_time": T0 + dt.timedelta(seconds=4, microseconds=-1)}
    assert shown.schema.field("window_time").type == pa.timestamp("us")
    distinct = ROWS_OF.watermark("at", 0).windowed_by(SlidingWindows.of(10)).agg(count()).select("window_time", "window_end")
    assert first(distinct) == {"window_time": 0, "window_end": 0}


@pytest.mark.parametrize("emit", ["watermark", "arrival"])
@pytest.mark.parametrize("column", ["at", "ts"])
def test_that_of_a_look_back_result_is_its_row_s_own(column: str, emit: Literal["watermark", "arrival"]) -> None:
    """Also where the window reaches beyond the row; ``window_end`` does."""
    both = ROWS_OF.watermark(column, 0).key_by("user").lookback_window("2 seconds", two_sided=True, emit=emit)
    shown = both.agg(count()).select("user", "window_time")
    table = collect([shown], ROWS)[0]
    assert table.sort_by("window_time")["window_time"].to_pylist() == [row[column] for row in ROWS]


@pytest.mark.parametrize(("emit", "fires_at"), [("watermark", 70), ("arrival", 40)])
def test_a_stage_behind_results_that_do_not_wait_does_not_either(emit: Any, fires_at: int) -> None:
    """The watermark handed on is behind by what results wait for: 30 beyond their row, or nothing."""
    rows = ROWS_OF.watermark("at", 0).lookback_window(30, two_sided=True, emit=emit).agg(count().alias("met"))
    driver = Driver(rows.tumbling_window(40).agg(max("met")))
    assert driver.send(ROWS[:2]).results.num_rows == 0
    assert driver.advance_watermark(fires_at - 1).results.num_rows == 0
    fired = driver.advance_watermark(fires_at).results.to_pylist()
    assert fired == [{"window_start": 0, "window_end": 40, "max_met": 2}]


def test_withdrawn_results_carry_it() -> None:
    counts = per_user().emit("retractions").allowed_lateness(50)
    for steps, names in ((counts.select("window_time"), ["window_time", "op"]), (counts.filter("window_time < 40"), None)):
        driver = Driver(steps)
        driver.send([ROWS[0], ROWS[7]])
        actual = driver.send([ROWS[2]]).results
        assert actual["op"].to_pylist() == ["-U", "+U"]
        assert names is None or actual.schema.names == names


def test_a_later_stage_can_aggregate_it() -> None:
    later_stage = per_user().select("user", "window_time", "count").tumbling_window(80).agg(max("window_time"))
    assert collect([later_stage], ROWS)[0]["max_window_time"].to_pylist() == [79]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT window_time, n FROM ({})", {"window_time": 39, "n": 2}),
        ("SELECT window_time AS t FROM ({}) WHERE window_time > 50", {"t": 79}),
        ("SELECT * FROM ({})", {"user": "a", "n": 2}),
    ],
)
def test_sql_selects_it(query: str, wanted: dict[str, Any]) -> None:
    session = SqlContext()
    session.register("t", ROWS_OF, event_time="at", lag=0)
    counts = "SELECT user, COUNT(*) AS n FROM t GROUP BY user, tumble(at, INTERVAL '40' MILLISECOND)"
    plan = session.sql(query.format(counts))
    assert plan is not None
    driver = Driver(plan)
    actual = [*driver.send(ROWS).results.to_pylist(), *driver.close().results.to_pylist()]
    assert actual[0] == wanted
