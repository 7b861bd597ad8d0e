"""A plan over tables that changes over a savepoint (SEMANTICS §12.2): what is kept, and what is null or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krishiv_py import CheckpointError, StateTtlConfig, count, max, sum
from krishiv_py.testing import Driver, stream_of

ROWS = stream_of("user string, n bigint, x double")
TIMED = stream_of("user string, n bigint, x double, at bigint").watermark("at", 0).key_by("user")
LOG = stream_of("op string, pk bigint, user string, n bigint").from_changelog("log", "pk")


def _ops(out: Any) -> list[tuple[Any, ...]]:
    return [(row["op"], *(v for n, v in row.items() if n != "op")) for row in out.results.to_pylist()]


def _changed(tmp_path: Path, plan: Any, sent: Any, other: Any, **more: Any) -> Driver:
    driver = Driver(plan)
    driver.send(sent)
    return Driver(other, savepoint=driver.savepoint(str(tmp_path / "s")), **more)


SENT = [{"user": "ann", "n": 5, "x": 0.5}, {"user": "bob", "n": 1, "x": 1.5}]


def test_an_aggregate_that_is_added_is_null_for_keys_from_before(tmp_path: Path) -> None:
    totals = ROWS.key_by("user").agg(total=sum("n"))
    driver = _changed(tmp_path, totals, SENT, ROWS.key_by("user").agg(total=sum("n"), most=max("x")))
    out = _ops(driver.send([{"user": "ann", "n": 2, "x": 9.0}, {"user": "cem", "n": 4, "x": 3.0}]))
    assert out == [("-U", "ann", 5, None), ("+U", "ann", 7, None), ("+I", "cem", 4, 3.0)]


def test_an_aggregate_is_removed_and_renamed(tmp_path: Path) -> None:
    totals = ROWS.key_by("user").agg(total=sum("n"), most=max("x"), rows=count())
    driver = _changed(tmp_path, totals, SENT, ROWS.key_by("user").agg(n=count(), sum_of_n=sum("n")))
    out = _ops(driver.send([{"user": "ann", "n": 2, "x": 9.0}]))
    assert out == [("-U", "ann", 1, 5), ("+U", "ann", 2, 7)]


def test_an_aggregate_that_is_added_over_changes(tmp_path: Path) -> None:
    driver = _changed(
        tmp_path,
        LOG.key_by("user").agg(total=sum("n")),
        [{"op": "+I", "pk": 1, "user": "ann", "n": 5}],
        LOG.key_by("user").agg(total=sum("n"), rows=count()),
    )
    assert _ops(driver.send([{"op": "+I", "pk": 2, "user": "ann", "n": 1}])) == [("-U", "ann", 5, None), ("+U", "ann", 6, None)]
    assert _ops(driver.send([{"op": "+I", "pk": 3, "user": "bob", "n": 1}])) == [("+I", "bob", 1, 1)]
    assert _ops(driver.send([{"op": "-D", "pk": 1}, {"op": "-D", "pk": 2}])) == [("-D", "ann", 6, None)]


def test_a_time_to_live_that_is_added(tmp_path: Path) -> None:
    totals = ROWS.key_by("user").agg(total=sum("n"))
    driver = _changed(tmp_path, totals, SENT, totals.with_state_ttl(StateTtlConfig("10 s", clock="processing")))
    driver.clock.advance("1 s")
    driver.send([{"user": "cem", "n": 1, "x": 0.0}])
    driver.clock.advance("20 s")
    gone = _ops(driver.send([{"user": "dan", "n": 1, "x": 0.0}]))
    assert sorted(op for op, *_ in gone) == ["+I", "-D", "-D", "-D"]


def test_columns_of_a_changelog_are_added(tmp_path: Path) -> None:
    wider = stream_of("op string, pk bigint, user string, n bigint, city string").from_changelog("log", "pk")
    driver = _changed(tmp_path, LOG, [{"op": "+I", "pk": 1, "user": "ann", "n": 5}], wider)
    out = _ops(driver.send([{"op": "+U", "pk": 1, "user": "ann", "n": 6, "city": "Ulm"}]))
    assert out == [("-U", 1, "ann", 5, None), ("+U", 1, "ann", 6, "Ulm")]


@pytest.mark.parametrize(
    "other",
    [
        ROWS.key_by("user").top_rows(2, by="n"),
        ROWS.key_by("n").agg(total=sum("n")),
        stream_of("user string, n bigint, x double, at bigint")
        .watermark("at", 0)
        .key_by("user")
        .tumbling_window(5)
        .agg(count()),
    ],
    ids=["first rows", "another key", "a window"],
)
def test_another_operation_is_refused_by_name(other: Any, tmp_path: Path) -> None:
    totals = ROWS.key_by("user").agg(total=sum("n"))
    with pytest.raises(CheckpointError):
        _changed(tmp_path, totals, SENT, other)


def test_another_sequence_is_refused(tmp_path: Path) -> None:
    ordered = stream_of("op string, pk bigint, user string, n bigint").from_changelog("log", "pk", sequence="n")
    with pytest.raises(CheckpointError):
        _changed(tmp_path, LOG, [{"op": "+I", "pk": 1, "user": "ann", "n": 5}], ordered)


def test_a_join_and_first_rows_go_on(tmp_path: Path) -> None:
    joined = ROWS.select("user", "n").join(LOG.select("user", "pk"), on="user", how="left")
    driver = Driver(joined)
    driver.send({"left": [{"user": "ann", "n": 5, "x": 0.0}]})
    driver = Driver(joined, savepoint=driver.savepoint(str(tmp_path / "s")))
    out = _ops(driver.send({"right": [{"op": "+I", "pk": 1, "user": "ann", "n": 5}]}))
    assert out == [("-D", "ann", 5, None), ("+I", "ann", 5, 1)]
    driver = _changed(tmp_path / "t", ROWS.key_by("user").top_rows(1, by="n"), SENT, ROWS.key_by("user").top_rows(1, by="n"))
    assert _ops(driver.send([{"user": "ann", "n": 7, "x": 0.0}])) == [("-D", "ann", 5, 0.5), ("+I", "ann", 7, 0.0)]
