"""Runs come back as they were written, from raw files, from the summary, and from both."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from benchmarks.record import RAW, RESULTS, SUMMARY, Record, main, read_all, summarise, write


def run(side: str, started: str, number: int = 0) -> Record:
    """A run of a side."""
    leg = {"cpu_s": 0.1 + 0.2, "wall_s": 1.5, "peak_pss_mb": 7.25, "exit_code": 0, "timed_out": False}
    kept = Record("backlog", "J1", "A-1000", side, number, 42, "event", 1000, leg, started=started)
    return evolve(kept, verdict={"ok": True, "note": 'late_rule="window" → 2'}, machine={"processor": "AMD EPYC"})


MORNING, NOON = "2026-01-01T08:00:00+00:00", "2026-01-01T12:00:00+00:00"


def test_the_summary_holds_what_the_raw_files_held(tmp_path: Path) -> None:
    runs = [run("flink", MORNING), run("krishiv", MORNING), run("krishiv", NOON)]
    for kept in reversed(runs):
        write(kept, tmp_path)
    assert read_all(tmp_path) == runs
    assert summarise(tmp_path) == 3
    assert not list((tmp_path / RAW).iterdir())
    assert len((tmp_path / SUMMARY).read_text().splitlines()) == 3
    assert read_all(tmp_path) == runs


def test_new_runs_are_next_to_the_summary_and_are_added_to_it(tmp_path: Path) -> None:
    write(run("krishiv", NOON), tmp_path)
    summarise(tmp_path)
    write(run("krishiv", MORNING), tmp_path)
    both = [run("krishiv", MORNING), run("krishiv", NOON)]
    assert read_all(tmp_path) == both
    assert main(["--results", str(tmp_path)]) == 0
    first = (tmp_path / SUMMARY).read_bytes()
    assert read_all(tmp_path) == both
    assert summarise(tmp_path) == 0
    assert (tmp_path / SUMMARY).read_bytes() == first


def test_a_run_counts_once(tmp_path: Path) -> None:
    # As after a stop between writing the summary and removing the files.
    path = write(run("krishiv", NOON), tmp_path)
    text = path.read_text()
    summarise(tmp_path)
    path.write_text(text)
    assert read_all(tmp_path) == [run("krishiv", NOON)]
    summarise(tmp_path)
    assert read_all(tmp_path) == [run("krishiv", NOON)]


def test_nothing_kept_is_no_run(tmp_path: Path) -> None:
    assert read_all(tmp_path / "none") == []
    assert summarise(tmp_path / "none") == 0


def test_the_summary_in_the_repository_is_sorted_and_read_whole() -> None:
    lines = (RESULTS / SUMMARY).read_text().splitlines()
    starts = [kept.started for kept in read_all()]
    assert len(lines) >= 755
    assert starts == sorted(starts)
