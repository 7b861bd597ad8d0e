"""Nexmark on the test driver: the events are what they should be, and every query gives what DuckDB gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from attrs import evolve

from benchmarks.nexmark import engines, report, run, sql, tables
from benchmarks.nexmark.generator import SCHEMAS, Spec, draw, make
from benchmarks.nexmark.queries import QUERIES, Streams
from benchmarks.nexmark.truth import TRUTH, check
from krishiv_py.testing import stream_of

# A hundred events a second: 200 seconds and one midnight, so that windows close on the way and there are two days.
SPEC = Spec(20_000, rate=100, parts=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set of events."""
    return make(SPEC, tmp_path_factory.mktemp("nexmark"))


def all_rows(folder: Path, name: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(p) for p in sorted((folder / name).glob("part-*.parquet"))])


def test_events_are_seeded_and_do_not_depend_on_parts_before() -> None:
    one, again, other = draw(SPEC, 2), draw(SPEC, 2), draw(Spec(20_000, 100, 4, seed=7), 2)
    assert all(one[name].equals(again[name]) and not one[name].equals(other[name]) for name in one)
    assert all(one[name].schema == SCHEMAS[name] for name in one)


def hot(column: pa.ChunkedArray, rest: int) -> float:
    return float(np.mean((column.to_numpy() - 1_000) % 100 == rest))


def test_proportions_and_hot_ones(data: Path) -> None:
    people, auctions, bids = (all_rows(data, name) for name in ("person", "auction", "bid"))
    assert (len(people), len(auctions), len(bids)) == (400, 1_200, 18_400)
    assert people["id"].to_pylist() == list(range(1_000, 1_400)) and auctions["id"].to_pylist() == list(range(1_000, 2_200))
    assert abs(hot(bids["auction"], 0) - 0.5) < 0.03
    assert abs(hot(bids["bidder"], 1) - 0.75) < 0.03
    assert abs(hot(auctions["seller"], 0) - 0.75) < 0.06
    known = np.mean(pc.is_in(bids["channel"], pa.array(["Google", "Facebook", "Baidu", "Apple"])).to_numpy())
    assert abs(known - 0.5) < 0.03
    prices = np.log10(bids["price"].to_numpy())
    assert prices.min() >= 2 and prices.max() <= 8 and abs(prices.mean() - 5) < 0.1
    assert pc.all(pc.greater(auctions["expires"], auctions["date_time"])).as_py()


def test_rows_are_in_the_order_of_event_time_and_refer_to_what_is_near(data: Path) -> None:
    streams = {name: all_rows(data, name) for name in ("person", "auction", "bid")}
    for rows in streams.values():
        times = rows["date_time"].cast(pa.int64()).to_numpy()
        assert (np.diff(times) >= 0).all() and (times % 1_000 == 0).all()
    person, auction, bid = (stream_of(SCHEMAS[name]) for name in ("person", "auction", "bid"))
    of = Streams(person, auction, bid, SPEC.rate)
    ms = {name: rows["date_time"].cast(pa.int64()).to_numpy() // 1_000 for name, rows in streams.items()}
    for name, column, to in (("bid", "auction", "auction"), ("bid", "bidder", "person"), ("auction", "seller", "person")):
        number = streams[name][column].to_numpy() - 1_000
        there = number < len(ms[to])
        assert np.abs(ms[name][there] - ms[to][number[there]]).max() <= of.reach_ms
    lasts = streams["auction"]["expires"].cast(pa.int64()).to_numpy() // 1_000 - ms["auction"]
    assert lasts.max() <= of.longest_ms


def test_every_query_is_there() -> None:
    assert set(QUERIES) == set(TRUTH) == {f"q{n}" for n in range(23)}
    assert all(query.title for query in QUERIES.values())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", QUERIES)
def test_query_on_the_driver_is_what_duckdb_says(data: Path, tmp_path: Path, name: str) -> None:
    engines.run(QUERIES[name], data, tmp_path / "out", "driver")
    verdict = check(name, data, tmp_path / "out")
    assert verdict.ok, verdict


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", sql.TEXTS)
def test_query_as_sql_is_what_duckdb_says(data: Path, tmp_path: Path, name: str) -> None:
    query = evolve(QUERIES[name], build=lambda streams: sql.planned(name, streams))
    engines.run(query, data, tmp_path / "out", "driver")
    verdict = check(name, data, tmp_path / "out")
    assert verdict.ok, verdict


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", tables.TABLES)
@pytest.mark.parametrize("engine", ["driver", "in-process"])
def test_query_without_a_window_is_what_duckdb_says(data: Path, tmp_path: Path, name: str, engine: engines.Engine) -> None:
    engines.run(tables.TABLES[name], data, tmp_path / "out", engine)
    verdict = check(name, data, tmp_path / "out", tables.TRUTH.get(name))
    assert verdict.ok, verdict


def test_a_wrong_result_is_found(data: Path, tmp_path: Path) -> None:
    engines.run(QUERIES["q2"], data, tmp_path, "driver")
    result = pq.read_table(tmp_path / "result.parquet")
    pq.write_table(result.slice(1), tmp_path / "result.parquet")
    assert (check("q2", data, tmp_path).missing, check("q2", data, tmp_path).unexpected) == (1, 0)
    (tmp_path / "result.parquet").unlink()
    assert not check("q2", data, tmp_path).ok


def test_turns_become_a_table(tmp_path: Path) -> None:
    def turn(side: str, short: float, long: float, events: int = 100_000, ok: bool = True, on: str = "A") -> report.Turn:
        return report.Turn("q5", side, 2_000_000, events, 10_000, 0, short, long, 1.0, 1.0, ok, "", "", "", on)

    for kept in (turn("streaming", 10, 20), turn("streaming", 14, 24), turn("flink", 0, 33, 0), turn("flink", 0, 1, 0, False)):
        report.write(kept, tmp_path / "turns")
    lines = report.table(report.read(tmp_path / "turns")).splitlines()
    assert lines[0] == "A, 2,000,000 events"
    assert lines[2] == "| CPU seconds | streaming | PyFlink SQL | PyFlink SQL over streaming |"
    assert lines[-1] == "| q5 | 22.0 (12.0) | 33.0 | 1.50 |"
    for kept in (turn("in-process", 0, 4, 0, on="B"), turn("duckdb", 0, 2, 0, on="B")):
        report.write(kept, tmp_path / "turns")
    assert report.table(report.read(tmp_path / "turns")).splitlines()[-1] == "| q5 | 4.0 | 2.0 | 2.00 | 0.50 |"


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--events", "5000", "--rate", "100", "--parts", "2", "--root", str(tmp_path), "--queries", "q1", "q5"]
    assert run.main(["check", *given]) == 0
    assert capsys.readouterr().out.count("as DuckDB") == 2
