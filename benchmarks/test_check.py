"""Generator and check, without Spark: two engines agree with the truth, and what is wrong is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks import flights, run
from benchmarks.check import check
from benchmarks.data import Spec, closed, draw, first_parts, make, open_state, parts_of, rows_of
from benchmarks.jobs import JOBS
from benchmarks.measure import Measurement
from benchmarks.modes import Case
from benchmarks.peers import bounded_duckdb, bounded_polars
from benchmarks.sides import SIDES, Side
from benchmarks.truth import Rules
from benchmarks.truth_sessions import walk

SPEC = Spec(5_000, "A", parts=5)
ALL = Rules("none", complete=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set."""
    return make(SPEC, tmp_path_factory.mktemp("data"))


def test_data_is_seeded_and_in_arrival_order(data: Path) -> None:
    assert draw(SPEC, 3).equals(draw(SPEC, 3))
    parts = parts_of(data)
    stamps = [path.stat().st_mtime for path in parts]
    assert stamps == sorted(set(stamps)) and len(parts) == 5
    assert rows_of(data) == 5_000 and rows_of(first_parts(data, 1)) == 1_000


@pytest.mark.parametrize("job", ["J1", "J2", "J3", "J4"])
@pytest.mark.parametrize("side", [bounded_duckdb, bounded_polars], ids=["duckdb", "polars"])
def test_bounded_sides_agree_with_the_truth(data: Path, tmp_path: Path, job: str, side: object) -> None:
    main = bounded_duckdb.main if side is bounded_duckdb else bounded_polars.main
    main(["--job", job, "--data", str(data), "--out", str(tmp_path / "out")])
    verdict = check(JOBS[job], data, tmp_path / "out", ALL)
    assert verdict.ok and verdict.compared > 1_000


def test_a_wrong_count_is_found(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bounded_duckdb.main(["--job", "J1", "--data", str(data), "--out", str(out)])
    table = pq.read_table(out / "result.parquet")
    counts = table["count"].to_numpy().copy()
    counts[7] += 1
    moment = table.schema.get_field_index("count")
    pq.write_table(table.set_column(moment, "count", [counts]), out / "result.parquet")
    verdict = check(JOBS["J1"], data, out, ALL)
    assert (verdict.ok, verdict.missing, verdict.unexpected) == (False, 1, 1)


@pytest.mark.parametrize("job", ["J1", "J4"])
def test_a_log_of_changes_is_folded(data: Path, tmp_path: Path, job: str) -> None:
    """Equal events have equal look-backs, so a row may appear twice; a window may not."""
    doubled, out = tmp_path / "data", tmp_path / "out"
    doubled.mkdir()
    part = pq.read_table(parts_of(data)[0], partitioning=None)
    pq.write_table(pa.concat_tables([part, part.slice(0, 10)]), doubled / "part-00000.parquet")
    bounded_duckdb.main(["--job", job, "--data", str(doubled), "--out", str(out)])
    rows = pq.read_table(out / "result.parquet")
    wrong = rows.set_column(rows.schema.get_field_index("count"), "count", [pc.add(rows["count"], 1)])

    def result(*changes: tuple[pa.Table, int]) -> tuple[int, int]:
        log = pa.concat_tables([table.append_column("diff", [[diff] * len(table)]) for table, diff in changes])
        pq.write_table(log, out / "result.parquet")
        verdict = check(JOBS[job], doubled, out, ALL)
        assert verdict.ok == (verdict.missing == verdict.unexpected == 0)
        return verdict.missing, verdict.unexpected

    assert result((rows, 1)) == (0, 0)
    assert result((wrong, 1), (wrong, -1), (rows, 1)) == (0, 0)
    assert result((rows.slice(1), 1)) == (1, 0)
    assert result((rows, 1), (rows.slice(0, 1), 1)) == (0, 1)
    assert result((rows, 1), (rows.slice(0, 1), -1)) == (1, 0)
    assert result((rows, 1), (wrong.slice(0, 2), -1)) == (0, 2)


def test_output_cut_short_is_found(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bounded_duckdb.main(["--job", "J1", "--data", str(data), "--out", str(out)])
    whole = (out / "result.parquet").read_bytes()
    (out / "result.parquet").write_bytes(whole[: len(whole) // 2])
    verdict = check(JOBS["J1"], data, out, ALL)
    assert not verdict.ok and "cannot be read" in verdict.note


@pytest.mark.parametrize("lost_numbers", [(), (3,), (1, 2, 3, 4)], ids=["nothing", "one batch", "all but the last"])
def test_what_stays_open_is_checked_after_its_times_were_taken(
    lost_numbers: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A side that lost rows it had kept open, which shows in nothing it writes while its times are taken."""
    folder = open_state(500, 5, 42, tmp_path / "data")
    runs: list[tuple[str, ...]] = []

    def start(side: Side, case: Case, data: Path, out: Path, timeout_s: float, *more: str) -> Measurement:
        runs.append((str(len(parts_of(data))), *more))
        if more:  # DuckDB takes all files there are as the state that was kept
            for part in lost_numbers:
                (data / f"part-{part:05d}.parquet").unlink()
            bounded_duckdb.main(["--job", case.job.name, "--data", str(data), "--out", str(out)])
        return Measurement((), 0, False, 1.0, 1.0, 0.0, 1.0, 1.0, 1)

    monkeypatch.setattr(run, "start", start)
    case = Case("open_state", JOBS["O1"], "open-500", folder, 5, "batch", closing=closed(folder))
    _, verdict = run.long_run(SIDES["krishiv"], case, tmp_path, 60.0)
    assert runs == [("5",), ("6", "--resume")]
    assert verdict is not None and verdict.compared > 500
    assert verdict.ok == (not lost_numbers)


def test_flights_are_real_rows_in_arrival_order(tmp_path: Path) -> None:
    folder = flights.make(tmp_path)
    assert rows_of(folder) == 336_776 and len(parts_of(folder)) == 74
    # Their delays make late rows: who counts them all is wrong under the rule of rows, and right where none is late.
    bounded_duckdb.main(["--job", "F1", "--data", str(folder), "--out", str(tmp_path / "out")])
    assert check(JOBS["F1"], folder, tmp_path / "out", ALL).ok
    assert not check(JOBS["F1"], folder, tmp_path / "out", Rules("event", complete=True)).ok


def test_late_rows_make_a_difference(data: Path, tmp_path: Path) -> None:
    # A side that counts late rows is right only where none is late.
    bounded_duckdb.main(["--job", "J1", "--data", str(data), "--out", str(tmp_path / "out")])
    assert not check(JOBS["J1"], data, tmp_path / "out", Rules("event", complete=True)).ok


def test_long_sessions_are_cut() -> None:
    #  0   4   8   12  16 | gap 5, at most 10: 12 is the first row 10 or more after 0; 30 follows a pause
    t = np.array([0, 4, 8, 12, 16, 30], dtype=np.int64)
    assert walk(np.zeros(6, dtype=np.int64), t, 5, 10, merge=False).tolist() == [0, 3, 5]
