"""The dots of the picture are the ratios of the tables, and what is not certain is a lower bound."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from benchmarks.plots import PICTURES, apart, dots, draw
from benchmarks.summary import summarize
from benchmarks.test_aims import rounds


def test_a_dot_is_the_ratio_of_medians_and_a_bound_where_the_work_is_below_noise() -> None:
    records = rounds("J1", "krishiv", [2, 3, 4, 3, 9]) + rounds("J1", "flink", [5, 9, 7, 2, 70])
    records += rounds("J5", "krishiv", [0.9, 3, 2]) + rounds("J5", "flink", [9, 8, 7])
    given = [(dot.side, dot.job, round(dot.value, 6), dot.sure) for dot in dots(summarize(records))]
    assert given == [("flink", "J1", 3.0, True), ("flink", "J5", 3.0, False)], (
        "6 over 2 in both: medians, and worst against best"
    )


def test_of_two_processors_the_worse_figure_is_drawn() -> None:
    records = rounds("J1", "krishiv", [2] * 3) + rounds("J1", "flink", [9] * 3)
    records += rounds("J1", "krishiv", [5] * 3, on="Intel Xeon") + rounds("J1", "flink", [13] * 3, on="Intel Xeon")
    assert [round(dot.value, 6) for dot in dots(summarize(records))] == [3.0]


def test_dots_on_each_other_are_shifted() -> None:
    records = (
        rounds("J1", "krishiv", [2]) + rounds("J1", "flink", [9]) + rounds("J2", "krishiv", [2]) + rounds("J2", "flink", [9])
    )
    records += rounds("J3", "krishiv", [2]) + rounds("J3", "flink", [90])
    shifts = [shift for _, shift in apart(dots(summarize(records)))]
    assert shifts[0] == -shifts[1] != 0
    assert shifts[2] == 0


def test_the_picture_is_drawn_only_where_there_is_a_peer(tmp_path: Path) -> None:
    ours = rounds("J1", "krishiv", [2])
    assert draw(summarize(ours), tmp_path) == []
    assert draw(summarize(ours + rounds("J1", "flink", [9])), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == ["ratios.png"]


def test_whole_processes_are_drawn_over_those_in_process(tmp_path: Path) -> None:
    records = [evolve(kept, mode="whole", short=None) for kept in rounds("J1", "in_process", [2]) + rounds("J1", "duckdb", [1])]
    records += rounds("J1", "krishiv", [7])
    assert [(dot.side, dot.value) for dot in dots(summarize(records), PICTURES[1])] == [("duckdb", 0.5)]
    assert draw(summarize(records), tmp_path) == ["", f"![{PICTURES[1].caption}](img/in_process.png)"]
